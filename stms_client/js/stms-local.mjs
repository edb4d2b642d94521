/**
 * Students of STMS evaluated in JavaScript, for Node, browsers and edge workers, without dependencies.
 *
 *     import { openLocal } from "./stms-local.mjs";
 *     const letters = await openLocal("https://stms.example.com", "letters@production", ["A", "B"], { key: "stms_…" });
 *     letters.isClass("A", [2, 8, 3, 5]);
 *
 * The arithmetic is that of core/packed, in float64. Scores differ from the service's only in the order of
 * sums: tests compare every kind of student. Rows are numbers in the order of the columns, records, or texts,
 * of which stms-records.mjs beside this file makes numbers.
 */

import { decode, Encoder, StmsError } from "./stms-records.mjs";

export { Encoder, StmsError };

const FORMAT = "stms.student.1";
/** Of a package that names its map, which other students share. */
const SHARING = "stms.student.2";
const MAP_FORMAT = "stms.map.1";
const MAX_MAGNITUDE = 1e100;
const FAR = 1e30;
const BESIDE_TERMS = "_beside_terms";
const REFUSED_SECONDS = 60;
const FETCH_SECONDS = 60;
/** Terms of a row that has none. */
const NONE = { columns: [], values: [] };

/** Σ_j a[start + j]·b[j], where the terms of a row stand behind b. */
function dot(a, start, b, { columns, values } = NONE) {
  let sum = 0;
  for (let j = 0; j < b.length; j++) sum += a[start + j] * b[j];
  for (let k = 0; k < columns.length; k++) sum += a[start + b.length + columns[k]] * values[k];
  return sum;
}

/** The function from a row (d,) to its basis values (p,). */
function mapOf(kind, header, arrays) {
  switch (kind) {
    case "linear":
      return (x) => x;
    case "rbf":
      return rbf(arrays);
    case "unit_rbf": {
      const basis = rbf(arrays);
      return (x) => basis(unit(x));
    }
    case "hellinger_rbf": {
      const basis = rbf(arrays);
      return (x) => basis(unit(x.map((value) => Math.sqrt(Math.max(value, 0)))));
    }
    case "fourier":
      return fourier(arrays);
    case "trees":
      return trees(header.n_basis, arrays);
    default:
      throw new StmsError(`The package has a map of unknown kind ${kind}.`);
  }
}

/** b_j(x) = exp(2 z·l_j − ‖l_j‖² − ‖z‖²) with z = (x − shift)·scale. */
function rbf(arrays) {
  const { data: landmarks, shape: [p, d] } = arrays["map.landmarks"];
  const shift = arrays["map.shift"].data, scale = arrays["map.scale"].data;
  const offset = new Float64Array(p);
  for (let j = 0; j < p; j++) offset[j] = -dot(landmarks, j * d, landmarks.subarray(j * d, (j + 1) * d));
  return (x) => {
    const z2 = new Float64Array(d);
    for (let i = 0; i < d; i++) z2[i] = (x[i] - shift[i]) * (2 * scale[i]);
    const norm = 0.25 * dot(z2, 0, z2), values = new Float64Array(p);
    if (!(norm < FAR)) return values;
    for (let j = 0; j < p; j++) values[j] = Math.exp(dot(landmarks, j * d, z2) + offset[j] - norm);
    return values;
  };
}

/** x / ‖x‖; zeros stay as they are. */
function unit(x) {
  const largest = x.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
  const scaled = Float64Array.from(x, (value) => value / largest);
  const norm = Math.sqrt(dot(scaled, 0, scaled)) || 1;
  return scaled.map((value) => value / norm);
}

/** b_j(x) = cos(ω_j·x + β_j). */
function fourier(arrays) {
  const { data: projections, shape: [p, d] } = arrays["map.projections"];
  const phases = arrays["map.phases"].data;
  return (x) => {
    const values = new Float64Array(p);
    for (let j = 0; j < p; j++) values[j] = Math.cos(dot(projections, j * d, x) + phases[j]);
    return values;
  };
}

/** Sums of the leaves that a row reaches, in the order of the trees; a negative reference is that of a leaf. */
function trees(sums, arrays) {
  const [feature, threshold, roots, test, children, output, [divisor]] = [
    "feature", "threshold", "roots", "test", "children", "output", "divisor",
  ].map((name) => arrays[`map.${name}`].data);
  const { data: values, shape: [, width] } = arrays["map.values"];
  return (x) => {
    const found = new Float64Array(sums);
    for (let tree = 0; tree < roots.length; tree++) {
      let node = roots[tree];
      while (node >= 0) node = children[2 * node + (x[feature[test[node]]] > threshold[test[node]] ? 1 : 0)];
      for (let k = 0; k < width; k++) found[output[tree] + k] += values[~node * width + k];
    }
    return found.map((value) => value / divisor);
  };
}

/** The function from basis values (p,), the last of which may be given as terms, to a score. */
function formOf(header, arrays) {
  const { data: coef, shape } = arrays.coef;
  switch (header.form ?? "linear") {
    case "linear":
      return (basis, terms) => dot(coef, 0, basis, terms) + header.intercept;
    case "polytope": {
      const [faces, p] = shape, intercept = arrays.intercept.data;
      return (basis, terms) => {
        let least = Infinity;
        for (let face = 0; face < faces; face++) {
          least = Math.min(least, dot(coef, face * p, basis, terms) + intercept[face]);
        }
        return least;
      };
    }
    case "gaussian": {
      const { data: factor, shape: [r, p] } = arrays.factor;
      return (basis, terms) => {
        let variance = header.prior_variance;
        for (let row = 0; row < r; row++) variance -= dot(factor, row * p, basis, terms) ** 2;
        return (dot(coef, 0, basis, terms) + header.intercept) / Math.sqrt(1 + Math.max(variance, 0));
      };
    }
    default:
      throw new StmsError(`The package has a decision form of unknown kind ${header.form}.`);
  }
}

/** The function from a score to the probability of the class; null for a student without one. */
function calibrationOf(calibration, arrays) {
  switch (calibration?.kind) {
    case undefined:
      return null;
    case "sigmoid":
      return (score) => {
        const odds = calibration.slope * score + calibration.offset, small = Math.exp(-Math.abs(odds));
        return (odds >= 0 ? 1 : small) / (1 + small);
      };
    case "isotonic":
      return (score) => interpolated(score, arrays["calibration.knots"].data, arrays["calibration.values"].data);
    case "probit":
      return (score) => 0.5 * erfc(-score / Math.SQRT2);
    default:
      throw new StmsError(`The package has a calibration of unknown kind ${calibration.kind}.`);
  }
}

/** The value at a score, linear between rising knots and constant beyond them. */
function interpolated(score, knots, values) {
  const above = knots.findIndex((knot) => knot > score);
  if (above === 0) return values[0];
  if (above < 0) return values[values.length - 1];
  const below = above - 1;
  return values[below] + (score - knots[below]) * ((values[above] - values[below]) / (knots[above] - knots[below]));
}

/** 1 − erf(x): a series of positive terms near 0, a continued fraction beyond (Abramowitz and Stegun, 7.1.6, 7.1.14). */
function erfc(x) {
  const size = Math.abs(x);
  let tail;
  if (size < 2) {
    let term = size, sum = size;
    for (let n = 1; term > sum * 1e-17; n++) sum += term *= (2 * size * size) / (2 * n + 1);
    tail = 1 - (2 / Math.sqrt(Math.PI)) * Math.exp(-size * size) * sum;
  } else {
    let fraction = size;
    for (let n = 120; n > 0; n--) fraction = size + n / 2 / fraction;
    tail = Math.exp(-size * size) / (fraction * Math.sqrt(Math.PI));
  }
  return x < 0 ? 2 - tail : tail;
}

const isList = (x) => Array.isArray(x) || ArrayBuffer.isView(x);

function finite(score) {
  if (!Number.isFinite(score)) throw new RangeError("The row has numbers so large that no finite score exists.");
  return score;
}

/** A map: the function of rows, and its sizes. header, arrays: of a package that holds it. */
class Basis {
  constructor(header, arrays) {
    this.columns = header.n_columns;
    this.terms = header.kind.endsWith(BESIDE_TERMS) ? header.n_terms : 0;
    this.isLinear = header.kind === "linear";
    // Of the columns before the terms.
    this.of = mapOf(this.terms > 0 ? header.kind.slice(0, -BESIDE_TERMS.length) : header.kind, header, arrays);
  }
}

/** The map in a package of its own, a Uint8Array. Throws StmsError for other bytes. */
export function readMap(bytes) {
  return new Basis(...decode(bytes, MAP_FORMAT));
}

/** The digest of the map that the package of a student names; null if it holds its map. */
export function namedMap(bytes) {
  const [header] = decode(bytes, FORMAT, SHARING);
  return header.format === SHARING ? header.map : null;
}

/**
 * The student of one class. bytes: a package of it, a Uint8Array. maps: what `readMap` gives, by digest, for a
 * package that names its map. Throws StmsError for other bytes.
 */
export class Student {
  constructor(bytes, maps = new Map()) {
    const [header, arrays] = decode(bytes, FORMAT, SHARING);
    this.label = header.label;
    this.threshold = header.threshold;
    this.gaps = header.gaps ?? [0, 0];
    const basis = header.format === SHARING ? maps.get(header.map) : new Basis(header, arrays);
    if (basis === undefined) throw new StmsError(`The package names the map ${header.map}, which is not there.`);
    this.columns = basis.columns;
    this.terms = basis.terms;
    this.isLinear = basis.isLinear;
    this.map = basis.of;
    this.form = formOf(header, arrays);
    this.calibration = calibrationOf(header.calibration, arrays);
  }

  /** The score of a row of numbers (d,). Throws RangeError for numbers that are missing, not finite or too large. */
  score(x) {
    if (!isList(x) || x.length !== this.columns) throw new RangeError(`A row of ${this.columns} numbers is needed.`);
    for (let i = 0; i < x.length; i++) {
      if (typeof x[i] !== "number" || !(Math.abs(x[i]) <= MAX_MAGNITUDE)) {
        throw new RangeError(`Column ${i} of the row is no usable number: ${x[i]}.`);
      }
    }
    if (this.terms === 0) return finite(this.form(this.map(x)));
    const dense = this.columns - this.terms;
    return finite(this.form(Float64Array.from([...this.map(x.slice(0, dense)), ...x.slice(dense)])));
  }

  /** The score of what an encoder made of a record or text. Throws RangeError, and StmsError if it does not fit. */
  scoreOf({ dense, columns, values, filled }, terms) {
    if (dense.length + terms !== this.columns || (this.terms > 0 && this.terms !== terms)) {
      throw new StmsError("The encoder does not fit the student.");
    }
    if (this.isLinear || this.terms > 0) return this.withGaps(this.form(this.map(dense), { columns, values }), filled);
    const full = new Float64Array(this.columns);
    full.set(dense);
    for (let k = 0; k < columns.length; k++) full[dense.length + columns[k]] = values[k];
    return this.withGaps(this.form(this.map(full)), filled);
  }

  /** The score s of a record with gaps in the share f of the columns that fill them: s + f · (a · s + c). */
  withGaps(score, filled) {
    const [slope, offset] = this.gaps;
    return finite(finite(score) + filled * (slope * score + offset));
  }

  /**
   * Match, score, threshold, and the probability of a calibrated student, of a row.
   *
   * encoder: of a model of records, whose rows are objects, or texts.
   */
  decide(x, encoder = null) {
    // A record may have a column named length.
    const isRow = encoder === null || (encoder.takesNumbers && isList(x));
    const score = isRow ? this.score(x) : this.scoreOf(encoder.encode(x), encoder.terms);
    const decision = { match: score >= this.threshold, score, threshold: this.threshold };
    return this.calibration === null ? decision : { ...decision, probability: this.calibration(score) };
  }
}

/** Students of one version that follow their model; `openLocal` makes one. */
export class Local {
  constructor(address, model, labels, { key = "", poll = 2, maxStale = 60, fetch = globalThis.fetch } = {}) {
    if (!(poll > 0 && poll < maxStale)) throw new RangeError("poll must be positive and less than maxStale.");
    if (!labels?.length) throw new RangeError("Name at least one class.");
    // A label that is a whole number or a truth value has its text as the name of its class.
    const names = Array.from(labels, String);
    Object.assign(this, { address: address.replace(/\/+$/, ""), model, labels: names, poll, maxStale });
    this.headers = key ? { authorization: `Bearer ${key}` } : {};
    this.fetch = fetch;
    this.held = null;
    this.refusal = null;
    this.answered = -Infinity;
    this.calls = 0;
  }

  /** Whether a row, record or text belongs to a class. Throws StmsError without a student that may answer. */
  isClass(label, x) {
    return this.query(label, x).match;
  }

  /** The decision on a row, record or text: match, score, threshold, probability of calibrated students, model and version. */
  query(label, x) {
    const held = this.known();
    const student = held.students.get(String(label));
    if (student === undefined) throw new StmsError(`Class ${label} is none of those that are evaluated.`);
    this.calls++;
    return { ...student.decide(x, held.encoder), model: held.model, version: held.version };
  }

  /** The version that answers. */
  get version() {
    return this.known().version;
  }

  /** Seconds since the last answer of the service. */
  get age() {
    return (performance.now() - this.answered) / 1000;
  }

  /** End the polls and the answers. */
  close() {
    clearTimeout(this.timer);
    this.closed = true;
    this.held = null;
  }

  known() {
    if (this.refusal !== null) throw this.refusal;
    if (this.held === null) throw new StmsError("Local evaluation has not begun or has ended.");
    if (this.age > this.maxStale) throw new StmsError("The service has not answered for too long.", 0, "stale");
    return this.held;
  }

  /** Look for a new version; a refusal drops all students, and other errors are no answer. */
  async pollOnce() {
    try {
      await this.follow();
    } catch (error) {
      // Of many wrong keys from one address, only the first are answered with 401.
      const isRefusal = [401, 403, 404].includes(error.status) || error.code === "too_many_failures";
      if (error instanceof StmsError && isRefusal) {
        this.refusal = error;
        this.held = null;
      }
    }
    if (!this.closed) this.plan();
  }

  plan() {
    const seconds = this.refusal === null ? this.poll : Math.max(this.poll, REFUSED_SECONDS);
    this.timer = setTimeout(() => this.pollOnce(), 1000 * seconds * (0.8 + 0.4 * Math.random()));
    this.timer.unref?.();
  }

  async follow() {
    const started = performance.now(), calls = this.calls, held = this.held;
    const first = await this.request(this.model, this.labels[0], held, calls);
    if (held !== null) this.calls -= calls;
    let found = held;
    if (first !== null) {
      const pinned = `${this.model.split("@")[0]}@${first.version}`;
      const others = this.labels.slice(1).map(async (label) => [label, await this.request(pinned, label)]);
      const packages = [[this.labels[0], first], ...(await Promise.all(others))];
      const maps = await this.mapsOf(pinned, packages, held);
      const students = new Map(packages.map(([label, { bytes }]) => [label, new Student(bytes, maps)]));
      const { model, version, etag, encoderDigest } = first;
      const encoder = await this.encoderOf(pinned, encoderDigest, held);
      found = { students, maps, encoder, encoderDigest, model, version, etag };
    }
    if (this.closed) return;
    this.held = found;
    this.refusal = null;
    this.answered = started;
  }

  /** The maps that packages name, by digest: each is fetched once, unless it is held. */
  async mapsOf(model, packages, held) {
    const labels = new Map(packages.map(([label, { bytes }]) => [namedMap(bytes), label]));
    labels.delete(null);
    const found = [...labels].map(async ([digest, label]) => {
      if (held?.maps.has(digest)) return [digest, held.maps.get(digest)];
      const { bytes, etag } = await this.request(model, label, null, 0, "map");
      if (!etag.endsWith(`-${digest}"`)) throw new StmsError("The map that was sent is not that of the student.");
      return [digest, readMap(bytes)];
    });
    return new Map(await Promise.all(found));
  }

  /** The encoder with a digest, null if there is none. */
  async encoderOf(model, digest, held) {
    if (digest === null || held?.encoderDigest === digest) return digest === null ? null : held.encoder;
    const { bytes, encoderDigest } = await this.request(model, this.labels[0], null, 0, "encoder");
    if (encoderDigest !== digest) throw new StmsError("The encoder that was sent is not that of the version.");
    return new Encoder(bytes);
  }

  /** The package of a class, its map or its encoder; null if the service says that it is held. */
  async request(model, label, held = null, calls = 0, part = "package") {
    const headers = { ...this.headers };
    if (held !== null) headers["if-none-match"] = held.etag;
    if (held !== null && calls > 0) headers["x-stms-local"] = `${held.version}:${Math.min(calls, 999999999)}`;
    const path = `/v1/models/${encodeURIComponent(model)}/classes/${encodeURIComponent(label)}/${part}`;
    // A poll on a connection that was cut is given up, so that the next one can come in time.
    const seconds = held === null ? FETCH_SECONDS : this.maxStale / 2;
    const signal = AbortSignal.timeout(1000 * seconds);
    const answer = await this.fetch(this.address + path, { headers, cache: "no-store", signal });
    if (answer.status === 304) return null;
    if (!answer.ok) {
      const problem = await answer.json().catch(() => ({}));
      throw new StmsError(problem.detail ?? `The service answered ${answer.status}.`, answer.status, problem.code);
    }
    return {
      bytes: new Uint8Array(await answer.arrayBuffer()),
      etag: answer.headers.get("etag"),
      model: answer.headers.get("x-model"),
      version: Number(answer.headers.get("x-model-version")),
      encoderDigest: answer.headers.get("x-encoder"),
    };
  }
}

/**
 * The students of some classes, once they are fetched. Throws StmsError.
 *
 * address: of the service. model: name, name@alias or name@3. options: key, of scope download; poll, seconds
 * between two polls ± 20 %; maxStale, seconds for which answers are given without the service; fetch.
 */
export async function openLocal(address, model, labels, options = {}) {
  const local = new Local(address, model, labels, options);
  await local.follow();
  local.plan();
  return local;
}
