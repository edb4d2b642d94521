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
  const scrolled = new Map([...part.querySelectorAll("[id]")].map((one) => [one.id, one.scrollTop]));
  const isTyping = used instanceof HTMLInputElement && part.contains(used);
  if (isTyping || part.querySelector("details[open], input:checked") || part.contains(document.getSelection()?.isCollapsed ? null : document.getSelection()?.anchorNode ?? null)) return;
  const name = used instanceof HTMLElement && part.contains(used) ? used.getAttribute("href") || used.id : "";
  const content = new DOMParser().parseFromString(html, "text/html").body;
  part.replaceChildren(...content.childNodes);
  for (const [id, top] of scrolled) if (top) document.getElementById(id)?.scrollTo({top});
  scrollable();
  announce(part.querySelector("[data-say]")?.textContent || "");
  if (name) {
    for (const link of part.querySelectorAll("a, button")) {
      if (link.getAttribute("href") === name || link.id === name) return /** @type {HTMLElement} */ (link).focus();
    }
  }
}

/** Lets the keyboard scroll what is wider than its place and holds nothing that can have the focus. */
function scrollable() {
  for (const part of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".scroll"))) {
    if (part.scrollWidth > part.clientWidth && !part.querySelector("a, button, input, select, summary")) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}

/** Tells people who hear the page what has changed; the region stays, only its text is new. */
function announce(/** @type {string} */ text) {
  const region = document.getElementById("live");
  if (region && text && region.textContent !== text) region.textContent = text;
}

/** Moves the focus to another row of a table: the next one, or the first if no row has it. */
function step(/** @type {HTMLElement} */ target, /** @type {number} */ by) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a"));
  const at = rows.indexOf(/** @type {Element} */ (target.closest("tr")));
  const next = at < 0 ? rows[0] : rows[at + by];
  /** @type {HTMLElement | null | undefined} */ (next?.querySelector("a"))?.focus();
  return Boolean(next);
}

/** The keys of the buttons on this page, in the list of all. */
function listKeys() {
  const body = document.querySelector("#shortcuts tbody");
  for (const button of document.querySelectorAll("main [aria-keyshortcuts]")) {
    const row = document.createElement("tr"), key = document.createElement("kbd");
    key.textContent = button.getAttribute("aria-keyshortcuts");
    row.insertCell().append(key);
    row.insertCell().textContent = button.textContent.trim();
    body?.append(row);
  }
}

/** Shortcuts: g and a letter goes to a section, / to the search, ? shows all; buttons have keys of their own. */
function shortcuts() {
  let armed = false;
  const help = /** @type {HTMLDialogElement | null} */ (document.getElementById("shortcuts"));
  listKeys();
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape") {
      const menu = /** @type {HTMLDetailsElement | null} */ (target.closest("details.confirm[open], details.account[open]"));
      if (menu) { menu.open = false; menu.querySelector("summary")?.focus(); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
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
    else if (event.key === "j" || event.key === "k") step(target, event.key === "j" ? 1 : -1);
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && target.closest("tbody")) {
      if (step(target, event.key === "ArrowDown" ? 1 : -1)) event.preventDefault();
    } else {
      const button = document.querySelector(`main [aria-keyshortcuts="${CSS.escape(event.key)}"]`);
      if (button instanceof HTMLElement) {
        event.preventDefault();
        button.click();
        if (button.matches("summary")) /** @type {HTMLElement | null} */ (button.parentElement?.querySelector("form button"))?.focus();
      }
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

/** A box in the head of a table marks all boxes of its name, and shows whether all, some or none are marked. */
function markAll() {
  document.addEventListener("change", (event) => {
    const target = /** @type {HTMLInputElement} */ (event.target), table = target.closest("table");
    const all = /** @type {HTMLInputElement | null | undefined} */ (table?.querySelector("[data-marks]"));
    if (!table || !all) return;
    const boxes = /** @type {HTMLInputElement[]} */ ([...table.querySelectorAll(`input[name="${all.dataset.marks}"]`)]);
    if (target === all) for (const box of boxes) box.checked = all.checked;
    all.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    all.indeterminate = !all.checked && boxes.some((box) => box.checked);
  });
}

for (const part of document.querySelectorAll("[data-poll]")) follow(/** @type {HTMLElement} */ (part));
shortcuts();
copyButtons();
markAll();
scrollable();
addEventListener("resize", scrollable);
