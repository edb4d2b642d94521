// What every page has: parts that refresh themselves, shortcuts, buttons that copy.
// @ts-check

/** Refreshes the element every `seconds` while the page is visible, and keeps focus, scroll and open menus. */
function follow(/** @type {HTMLElement} */ part) {
  const base = 1000 * Number(part.dataset.seconds || "2");
  let pause = base, tag = "", timer = 0;

  async function refresh() {
    if (document.hidden) return;
    try {
      const address = /** @type {string} */ (part.dataset.poll);
      const answer = await fetch(address, {
        headers: tag ? {"If-None-Match": tag} : {}, redirect: "manual", cache: "no-store",
      });
      if (answer.type === "opaqueredirect") return location.reload();
      pause = answer.ok || answer.status === 304 ? base : Math.min(2 * pause, 60000);
      part.classList.toggle("stale", !(answer.ok || answer.status === 304));
      if (answer.ok) {
        tag = answer.headers.get("ETag") || "";
        replace(part, await answer.text());
      }
    } catch {
      part.classList.add("stale");
      pause = Math.min(2 * pause, 60000);
    }
    schedule();
  }

  function schedule() {
    clearTimeout(timer);
    if (part.querySelector("[data-final]") === null) timer = setTimeout(refresh, pause);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) schedule(); });
  schedule();
}

/** Puts new content into an element, unless a person is using the old one. */
function replace(/** @type {HTMLElement} */ part, /** @type {string} */ html) {
  const used = document.activeElement;
  const isTyping = used instanceof HTMLInputElement && part.contains(used);
  if (isTyping || part.querySelector("details[open]") || part.contains(document.getSelection()?.isCollapsed ? null : document.getSelection()?.anchorNode ?? null)) return;
  const name = used instanceof HTMLElement && part.contains(used) ? used.getAttribute("href") || used.id : "";
  const content = new DOMParser().parseFromString(html, "text/html").body;
  part.replaceChildren(...content.childNodes);
  if (name) {
    for (const link of part.querySelectorAll("a, button")) {
      if (link.getAttribute("href") === name || link.id === name) return /** @type {HTMLElement} */ (link).focus();
    }
  }
}

/** Shortcuts: g and a letter goes to a section, / to the search, ? shows all. */
function shortcuts() {
  let armed = false;
  const help = /** @type {HTMLDialogElement | null} */ (document.getElementById("shortcuts"));
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.matches("input:not([type=range]), textarea, select")) return;
    if (armed) {
      armed = false;
      const section = document.querySelector(`nav.sections a[data-shortcut="${CSS.escape(event.key)}"]`);
      if (section) { event.preventDefault(); /** @type {HTMLElement} */ (section).click(); }
      return;
    }
    if (event.key === "g") { armed = true; setTimeout(() => { armed = false; }, 1500); }
    else if (event.key === "/") {
      const search = /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"));
      if (search) { event.preventDefault(); search.focus(); }
    } else if (event.key === "?" && help) help.showModal();
    else if ((event.key === "j" || event.key === "k" || event.key === "ArrowDown" || event.key === "ArrowUp") && target.closest("tbody")) {
      const rows = [...document.querySelectorAll("tbody tr")].filter((row) => row.querySelector("a"));
      const row = target.closest("tr");
      const step = event.key === "j" || event.key === "ArrowDown" ? 1 : -1;
      const next = rows[rows.indexOf(/** @type {Element} */ (row)) + step];
      if (next) { event.preventDefault(); /** @type {HTMLElement} */ (next.querySelector("a")).focus(); }
    }
  });
}

function copyButtons() {
  document.addEventListener("click", async (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("[data-copy]");
    if (!(button instanceof HTMLElement)) return;
    const source = document.getElementById(button.dataset.copy || "");
    if (!source) return;
    await navigator.clipboard.writeText(source.textContent || "");
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  });
  if (navigator.clipboard) for (const button of document.querySelectorAll("[data-copy]")) button.removeAttribute("hidden");
}

for (const part of document.querySelectorAll("[data-poll]")) follow(/** @type {HTMLElement} */ (part));
shortcuts();
copyButtons();
