// The movable threshold: counts, shares, cost and the marks on both curves follow; the address carries it.
// @ts-check

const part = document.getElementById("threshold");
if (part) movable(part);

function movable(/** @type {HTMLElement} */ part) {
  const read = (/** @type {string} */ name) => JSON.parse(part.dataset[name] || "[]");
  const thresholds = read("thresholds"), tp = read("tp"), fp = read("fp");
  const positives = read("positives"), negatives = read("negatives"), side = read("side");
  const slider = /** @type {HTMLInputElement} */ (document.getElementById("slider"));
  const field = /** @type {HTMLInputElement} */ (document.getElementById("t"));
  const cost = /** @type {HTMLInputElement} */ (document.getElementById("cost"));
  const most = /** @type {HTMLInputElement} */ (document.getElementById("most"));
  const cheapest = /** @type {HTMLElement | null} */ (part.querySelector("[data-go]"));

  const share = (/** @type {number} */ a, /** @type {number} */ b) => b ? a / b : null;
  const shown = (/** @type {number | null} */ value) => value === null ? "–" : value.toFixed(4);
  const grouped = (/** @type {number} */ value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");

  function say(/** @type {string} */ name, /** @type {string} */ text) {
    for (const place of part.querySelectorAll(`[data-value="${name}"]`)) place.textContent = text;
  }

  function place(/** @type {string} */ name, /** @type {number | null} */ x, /** @type {number | null} */ y) {
    const mark = part.querySelector(`[data-cursor="${name}"]`);
    mark?.setAttribute("cx", String(side * (x ?? 0)));
    mark?.setAttribute("cy", String(side * (1 - (y ?? 0))));
  }

  const short = thresholds.map((/** @type {number} */ value) => Number(value.toPrecision(6)));

  /** With six digits, or with all if another point is shown so. */
  function typed(/** @type {number} */ i) {
    return String(short.filter((/** @type {number} */ value) => value === short[i]).length === 1 ? short[i] : thresholds[i]);
  }

  function show(/** @type {number} */ i) {
    const ratio = Number(cost.value) > 0 ? Number(cost.value) : 1;
    const fn = positives - tp[i], tn = negatives - fp[i];
    const precision = share(tp[i], tp[i] + fp[i]), recall = share(tp[i], positives);
    for (const [name, value] of /** @type {[string, number][]} */ ([["tp", tp[i]], ["fp", fp[i]], ["fn", fn], ["tn", tn]])) say(name, grouped(value));
    say("threshold", String(short[i]));
    for (const one of part.querySelectorAll('[data-value="threshold"]')) /** @type {HTMLElement} */ (one).title = String(thresholds[i]);
    say("precision", shown(precision));
    say("recall", shown(recall));
    say("f1", shown(positives ? share(2 * tp[i], 2 * tp[i] + fp[i] + fn) : null));
    say("fpr", shown(share(fp[i], negatives)));
    say("cost", String(Math.round(10 * (fp[i] + ratio * fn)) / 10));
    place("roc", share(fp[i], negatives), recall);
    place("pr", recall, precision);
    for (const hidden of part.querySelectorAll("[data-threshold]")) /** @type {HTMLInputElement} */ (hidden).value = String(thresholds[i]);
    field.value = typed(i);
    field.title = String(thresholds[i]);
    slider.setAttribute("aria-valuetext", `threshold ${thresholds[i].toPrecision(5)}, precision ${shown(precision)}, recall ${shown(recall)}`);
    let best = 0;
    const costOf = (/** @type {number} */ k) => fp[k] + ratio * (positives - tp[k]);
    for (let k = 1; k < tp.length; k++) if (costOf(k) < costOf(best)) best = k;
    if (cheapest) cheapest.dataset.go = String(best);
  }

  function go(/** @type {number} */ i) {
    slider.value = String(i);
    show(i);
    remember();
  }

  function remember() {
    const address = new URL(location.href);
    address.searchParams.delete("most");
    address.searchParams.set("t", String(thresholds[Number(slider.value)]));
    if (Number(cost.value) > 0) address.searchParams.set("cost", cost.value);
    history.replaceState(null, "", address);
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  slider.addEventListener("change", remember);
  cost.addEventListener("input", () => show(Number(slider.value)));
  cost.addEventListener("change", remember);
  cheapest?.addEventListener("click", (event) => {
    event.preventDefault();
    go(Number(cheapest.dataset.go));
  });
  most.form?.addEventListener("submit", (event) => {
    event.preventDefault();
    const reached = fp.findLastIndex((/** @type {number} */ count) => 100 * count <= Number(most.value) * negatives);
    part.querySelector("[data-unreached]")?.toggleAttribute("hidden", reached >= 0);
    go(Math.max(reached, 0));
  });
  part.querySelector("[data-slider]")?.removeAttribute("hidden");
}
