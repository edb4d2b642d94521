// Decisions on suspect rows by single keys: a key decides on the row with the focus, and goes on to the next.
// @ts-check

/** @type {Record<string, string>} */
const decisions = {c: "correct", k: "keep", s: "skip"};
const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-suspect]")]);
const decided = document.getElementById("decided");

function radio(/** @type {Element | undefined} */ row, /** @type {string} */ value) {
  return /** @type {HTMLInputElement | null | undefined} */ (row?.querySelector(`input[type=radio][value="${value}"]`));
}

/** Says how many labels are corrected and kept. */
function count() {
  const marked = (/** @type {string} */ value) => rows.filter((row) => radio(row, value)?.checked).length;
  if (decided) decided.textContent = `${marked("correct")} to correct, ${marked("keep")} to keep`;
}

document.addEventListener("change", count);
document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  const row = target.closest("[data-suspect]"), value = decisions[event.key];
  if (!row || !value || event.ctrlKey || event.metaKey || event.altKey || target.matches("input[type=text]")) return;
  event.preventDefault();
  const mark = radio(row, value);
  if (mark) mark.checked = true;
  const next = radio(rows[rows.indexOf(/** @type {HTMLElement} */ (row)) + 1], "skip") || mark;
  /** @type {HTMLElement | null | undefined} */ (next?.closest("fieldset")?.querySelector("input[type=radio]:checked"))?.focus();
  count();
});
// A change of the label is a correction.
document.addEventListener("input", (event) => {
  const target = /** @type {HTMLElement} */ (event.target), row = target.closest("[data-suspect]");
  const mark = row && target.matches("input[type=text]") ? radio(row, "correct") : null;
  if (mark) { mark.checked = true; count(); }
});
/** @type {HTMLElement | null | undefined} */ (radio(rows[0], "skip"))?.focus();
count();
