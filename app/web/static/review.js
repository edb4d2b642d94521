// Answers about the row on the page by single keys: y, n and s press the button that has the key.
// @ts-check

document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || target.matches("input, select, textarea")) return;
  const button = /** @type {HTMLButtonElement | null} */ (document.querySelector(`button[data-key="${CSS.escape(event.key)}"]`));
  if (!button) return;
  event.preventDefault();
  button.click();
});
