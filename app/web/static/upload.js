// Sends the file with a bar for the progress. A look at its columns takes the place of the form, and keeps the file.
// @ts-check

const form = /** @type {HTMLFormElement | null} */ (document.querySelector("form[data-upload]"));
if (form) enhance(form);

function enhance(/** @type {HTMLFormElement} */ form) {
  const bar = /** @type {HTMLProgressElement} */ (form.querySelector("progress"));
  const outcome = /** @type {HTMLElement} */ (form.querySelector("[data-outcome]"));
  const file = /** @type {HTMLInputElement} */ (form.querySelector("#file"));

  function say(/** @type {string} */ text) { outcome.replaceChildren(text); }

  function show(/** @type {Document | null} */ answer) {
    const note = document.createElement("div");
    note.className = "note bad";
    const said = answer?.querySelector("main .card .body");
    if (said) for (const part of [...said.children].slice(0, -1)) note.append(document.adoptNode(part));
    else note.append("The server has given no answer that can be shown. Reload the page, then try again.");
    outcome.replaceChildren(note);
  }

  /** Puts the form of an answer, and what it shows of the file, in place of this one. */
  function replace(/** @type {Element} */ fresh) {
    fresh.querySelector("#file")?.replaceWith(file);
    form.closest("[data-uploading]")?.replaceWith(document.adoptNode(fresh));
    const next = /** @type {HTMLFormElement} */ (fresh.querySelector("form[data-upload]"));
    enhance(next);
    /** @type {HTMLElement | null} */ (fresh.querySelector("#found h2") || next.querySelector("button"))?.focus();
  }

  // The columns of another file are others.
  file.addEventListener("change", () => {
    if (form.isConnected) document.getElementById("found")?.remove();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = /** @type {HTMLButtonElement} */ (event.submitter);
    const request = new XMLHttpRequest();
    // A button that is disabled loses the focus.
    const end = () => { bar.hidden = true; button.disabled = false; button.focus(); };
    request.open("POST", button.getAttribute("formaction") || form.action);
    request.responseType = "document";
    request.upload.addEventListener("progress", (now) => {
      if (now.lengthComputable) bar.value = now.loaded / now.total;
      if (now.loaded === now.total) say("The server checks the file.");
    });
    request.addEventListener("load", () => {
      const fresh = request.response?.querySelector("[data-uploading]");
      if (fresh) return replace(fresh);
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
