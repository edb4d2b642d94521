// The form for a job: fields of other methods are hidden, and the commands follow what is filled in.
// @ts-check

const form = /** @type {HTMLFormElement | null} */ (document.querySelector("form[data-train]"));
if (form) follow(form);

function follow(/** @type {HTMLFormElement} */ form) {
  function choose() {
    for (const group of form.querySelectorAll("[data-group]")) {
      const choice = /** @type {HTMLSelectElement | null} */ (group.querySelector("select[id$='.method']"));
      if (!choice) continue;
      const method = choice.value || choice.options[0].text.split(" ")[0];
      for (const part of group.querySelectorAll("[data-methods]")) {
        const applies = (part.getAttribute("data-methods") || "").split(" ").includes(method);
        part.toggleAttribute("hidden", !applies);
        for (const input of part.querySelectorAll("input, select")) input.toggleAttribute("disabled", !applies);
      }
    }
  }

  let last = 0;
  async function refresh() {
    const number = ++last;
    const body = new URLSearchParams(/** @type {any} */ (new FormData(form)));
    body.set("show", "1");
    const answer = await fetch(form.action, {method: "POST", body, redirect: "manual"});
    if (number !== last || !(answer.ok || answer.status === 400)) return;
    const shown = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const code of document.querySelectorAll("#commands pre")) {
      const now = shown.getElementById(code.id);
      if (now) code.textContent = now.textContent;
    }
  }

  form.addEventListener("change", () => { choose(); refresh().catch(() => {}); });
  choose();
}
