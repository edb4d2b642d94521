// Uploads with a bar for the progress, and shows what is wrong with a file below the form.
// @ts-check

const form = /** @type {HTMLFormElement | null} */ (document.querySelector("form[data-upload]"));
if (form) enhance(form);

function enhance(/** @type {HTMLFormElement} */ form) {
  const bar = /** @type {HTMLProgressElement} */ (form.querySelector("progress"));
  const outcome = /** @type {HTMLElement} */ (form.querySelector("[data-outcome]"));
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("button"));

  function say(/** @type {string} */ text) { outcome.replaceChildren(text); }

  function show(/** @type {Document | null} */ answer) {
    const note = document.createElement("div");
    note.className = "note bad";
    const said = answer?.querySelector("main .card .body");
    if (said) for (const part of [...said.children].slice(0, -1)) note.append(document.adoptNode(part));
    else note.append("The server has given no answer that can be shown. Reload the page, then try again.");
    outcome.replaceChildren(note);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const request = new XMLHttpRequest();
    // A button that is disabled loses the focus.
    const end = () => { bar.hidden = true; button.disabled = false; button.focus(); };
    request.open("POST", form.action);
    request.responseType = "document";
    request.upload.addEventListener("progress", (now) => {
      if (now.lengthComputable) bar.value = now.loaded / now.total;
      if (now.loaded === now.total) say("The server checks the file.");
    });
    request.addEventListener("load", () => {
      if (request.status < 400) return location.assign(request.responseURL);
      end();
      show(request.response);
    });
    request.addEventListener("error", () => {
      end();
      say("The connection was closed before the file had arrived. It may be too large, or the server has stopped: reload the page to see.");
    });
    button.disabled = true;
    bar.hidden = false;
    say("");
    request.send(new FormData(form));
  });
}
