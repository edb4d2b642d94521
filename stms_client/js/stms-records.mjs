/**
 * Records and texts as rows of numbers, in JavaScript: what core/packed/encoder.py does, for stms-local.mjs.
 *
 *     number, boolean    a number; of a gap the median, and 1 in a column of its own if gaps were frequent
 *     category           1 in the column of its value, of all rare and unseen ones, or of gaps
 *     date               years, sines and cosines of the hour, the day of the week and of the year
 *     text               its terms with weights; a category of many values has them, too
 *     vector             its numbers
 *
 * A row has the bits that it has in Python, but for sines and cosines, which differ in their last bit. What
 * cannot be said so is refused by name: names of months in dates, numbers from 2^53 on as categories, and
 * letters younger than Unicode 14, which programs of different age bring to different forms.
 */

const FORMAT = "stms.encoder.1";
const MAX_MAGNITUDE = 1e100;
const MOST_MISSING = 64;
const MAX_VALUE_BYTES = 4096;
const MAX_TEXT_BYTES = 65536;
const NULLS = new Set(["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "?"]);
const LONGER_THAN_NULLS = 10;
const MAX_KEPT = 65536;
/** Of safetensors. */
const TYPES = { F64: Float64Array, F32: Float32Array, I64: BigInt64Array, I32: Int32Array, U8: Uint8Array };

/** The service, or a local evaluator, refused. status: of HTTP, 0 without an answer. code: a stable word. */
export class StmsError extends Error {
  constructor(message, status = 0, code = "error") {
    super(message);
    this.name = "StmsError";
    this.status = status;
    this.code = code;
  }
}

/** The text of bytes in UTF-8. */
export const textOf = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);

/** Header and arrays, each with its shape, of safetensors of one of the formats. Throws StmsError. */
export function decode(bytes, ...formats) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  if (length > bytes.byteLength - 8) throw new StmsError("The package ends within its header.");
  const index = JSON.parse(textOf(bytes.subarray(8, 8 + length)));
  const header = JSON.parse(index.__metadata__.stms);
  if (!formats.includes(header.format)) {
    throw new StmsError(`The package has the format ${header.format}, not ${formats.at(-1)}.`);
  }
  const arrays = {};
  delete index.__metadata__;
  for (const [name, { dtype, shape, data_offsets: [start, stop] }] of Object.entries(index)) {
    // A copy: its beginning is a multiple of the size of a number.
    const data = bytes.slice(8 + length + start, 8 + length + stop);
    if (data.byteLength !== stop - start) throw new StmsError("The package ends within an array.");
    arrays[name] = { data: new TYPES[dtype](data.buffer), shape };
  }
  return [header, arrays];
}

/** Makes rows of records and texts. bytes: of a package, a Uint8Array. Throws StmsError for what is unknown here. */
export class Encoder {
  constructor(bytes) {
    const [, arrays] = decode(bytes, FORMAT);
    const [described, ignored] = JSON.parse(textOf(arrays.columns.data));
    this.dense = this.terms = 0;
    this.columns = described.map((entry, place) => {
      const own = (name) => arrays[`${place}.${name}`];
      const make = Object.hasOwn(KINDS, entry.kind) ? KINDS[entry.kind] : null;
      if (make === null) throw new StmsError(`The encoder has a column of unknown kind ${entry.kind}.`);
      const column = { name: entry.name, kind: entry.kind, required: entry.required, ...make(entry, own) };
      column.nulls = entry.nulls ?? [];
      column.fills = entry.fills === true;
      column.hasGapTexts = entry.kind === "number" ? takesTexts(entry) : entry.kind !== "boolean";
      column.tables = termTables(entry.terms ?? [], own);
      Object.assign(column, { start: this.dense, firstTerm: this.terms });
      this.dense += column.width;
      for (const { size } of column.tables) this.terms += size;
      return column;
    });
    this.names = new Set([...this.columns.map(({ name }) => name), ...ignored]);
    this.takesNumbers = this.columns.every(
      ({ kind, required, fills, width }) =>
        (kind === "number" || kind === "boolean") && (required || fills) && width === 1,
    );
    this.filling = this.columns.filter(({ fills }) => fills).length;
    this.gaps = "gaps.scales" in arrays ? gapFill(arrays) : null;
  }

  /**
   * The row of a record, an object of values by names of columns, or of a text. Throws RangeError.
   *
   * Values are those that JSON.stringify would send: a Date is its text, NaN and undefined are gaps.
   *
   * dense: the columns before the terms. columns, values: of its terms; the first has column 0. filled: the share
   * of the columns that fill gaps in which the record has one.
   */
  encode(record) {
    const given = typeof record === "string" ? this.ofText(record) : sent(record);
    if (given === null || typeof given !== "object" || ArrayBuffer.isView(given) || Symbol.iterator in given) {
      const way = given instanceof Map ? " Give Object.fromEntries(map)." : "";
      throw new RangeError(`A record is an object of values by the names of their columns.${way}`);
    }
    for (const name of Object.keys(given)) {
      if (!this.names.has(name) && given[name] !== undefined) {
        throw new RangeError(`The record has a column that the model does not know: ${name}.`);
      }
    }
    const dense = new Float64Array(this.dense), columns = [], values = [], missing = [];
    let gaps = 0, isEmpty = true;
    for (const column of this.columns) {
      const value = Object.hasOwn(given, column.name) ? sent(given[column.name]) : null;
      const known = value === null ? null : checked(column, value);
      if (known === null && column.required && !(column.kind === "text" && value !== null)) {
        throw new RangeError(`${column.name} has no value, and had one in every training row.`);
      }
      dense.set(column.row(known), column.start);
      isEmpty &&= known === null;
      if (known === null && column.fills) {
        gaps++;
        for (let k = 0; k < column.width; k++) missing.push(column.start + k);
      }
      if (known !== null && column.tables.length > 0) addTerms(column, known, columns, values);
    }
    if (gaps > 0 && isEmpty) throw new RangeError("The record has no value in any column.");
    this.gaps?.(dense, missing);
    return { dense, columns, values, filled: gaps / Math.max(1, this.filling) };
  }

  ofText(text) {
    const [only, ...others] = this.columns;
    if (others.length > 0 || only.kind !== "text") {
      throw new RangeError("The columns of this model are not one text: ask about a record.");
    }
    return { [only.name]: text };
  }
}

/**
 * What writes to the missing dense columns M of a row what the others O say: z_M = −P_MM⁻¹ P_MO z_O, in standard
 * deviations from the means. More than 64 stay as they are, as in core/packed/gap_fill.py.
 */
function gapFill(arrays) {
  const means = arrays.means.data, scales = arrays["gaps.scales"].data, P = arrays["gaps.precision"].data;
  const k = means.length;
  return (row, missing) => {
    const m = missing.length;
    if (m === 0 || m > MOST_MISSING) return;
    const z = Array.from(row, (value, j) => (value - means[j]) / scales[j]);
    for (const j of missing) z[j] = 0;
    // Gaussian elimination; P is positive.
    const rows = missing.map((i) => [
      ...missing.map((j) => P[i * k + j]), -z.reduce((sum, value, j) => sum + P[i * k + j] * value, 0),
    ]);
    for (let i = 0; i < m; i++) {
      if (!(rows[i][i] > 0)) return;
      for (let below = i + 1; below < m; below++) {
        const factor = rows[below][i] / rows[i][i];
        for (let j = i; j <= m; j++) rows[below][j] -= factor * rows[i][j];
      }
    }
    const found = new Array(m);
    for (let i = m - 1; i >= 0; i--) {
      let right = rows[i][m];
      for (let j = i + 1; j < m; j++) right -= rows[i][j] * found[j];
      found[i] = right / rows[i][i];
    }
    missing.forEach((j, i) => {
      row[j] = means[j] + scales[j] * found[i];
    });
  };
}

/** The kinds of columns: of an entry and its arrays the width, what checks a value, and what makes numbers of it. */
const KINDS = {
  number: (entry) => numberColumn(entry, (value) => {
    if (typeof value === "string" && takesTexts(entry)) return numberOfText(value, entry);
    if (typeof value !== "number") throw new RangeError("must be a number");
    if (!(Math.abs(value) <= MAX_MAGNITUDE)) throw new RangeError("is not a finite number of usable size");
    return value;
  }),
  boolean: (entry) => numberColumn(entry, (value) => {
    if (typeof value !== "boolean") throw new RangeError("must be true or false");
    return Number(value);
  }),
  category: categoryColumn,
  date: dateColumn,
  text: () => ({ width: 0, row: () => [], check: (value) => {
    if (typeof value !== "string") throw new RangeError("must be a text");
    return value;
  } }),
  vector: (entry, own) => {
    const fallback = own("fallback").data, marks = entry.marks_gaps;
    return {
      width: fallback.length + Number(marks),
      row: (value) => [...(value ?? fallback), ...(marks ? [Number(value === null)] : [])],
      check: (value) => {
        const isList = (Array.isArray(value) || ArrayBuffer.isView(value)) && value.length === fallback.length;
        const isUsable = (number) => typeof number === "number" && Math.abs(number) <= MAX_MAGNITUDE;
        if (isList && Array.from(value).every(isUsable)) return value;
        throw new RangeError(`must be a list of ${fallback.length} usable numbers`);
      },
    };
  },
};

/** A value as JSON has it: that of its toJSON, the value of an object around one, and null for NaN and undefined. */
function sent(value) {
  const plain = typeof value?.toJSON === "function" ? value.toJSON() : value;
  if (plain instanceof Number || plain instanceof String || plain instanceof Boolean) return sent(plain.valueOf());
  return Number.isNaN(plain) ? null : (plain ?? null);
}

/** A value as `row` takes it; null for a text that stands for a gap. Throws RangeError. */
function checked(column, value) {
  try {
    if (typeof value === "string" && /\p{Cs}/u.test(value)) {
      throw new RangeError("is not valid text: it has half a character");
    }
    if (typeof value === "string" && column.hasGapTexts) {
      const bare = stripped(value);
      if (column.nulls.includes(bare)) return null;
      if (value.length < LONGER_THAN_NULLS && NULLS.has(bare) && !column.places?.has(bare)) return null;
    }
    return column.check(value);
  } catch (fault) {
    throw fault instanceof RangeError ? new RangeError(`Column ${column.name} ${fault.message}.`) : fault;
  }
}

/** Whether texts of a column of numbers are read, as in training. */
const takesTexts = ({ pattern, nulls }) => (pattern ?? null) !== null || (nulls ?? []).length > 0;

/** The number that a text holds, as core/data/number_texts.py has it. Throws RangeError. */
function numberOfText(text, { pattern }) {
  const bare = stripped(text);
  let found = null;
  if ((pattern ?? null) !== null) {
    const { sign, decimal } = numberFormat(pattern), parts = splitNumber(bare);
    if (parts !== null && ["", sign].includes(parts.sign)) found = numberValue(parts, decimal);
  } else if (PLAIN_NUMBER.test(bare) && !/^[+-]?0[0-9]/.test(bare)) {
    found = Number(bare);
  }
  if (found !== null && Math.abs(found) <= MAX_MAGNITUDE) return found;
  throw new RangeError(`is ${bare.slice(0, 40)}, not a number${pattern ? `, written as ${pattern}` : ""}`);
}

/** Sign and mark of decimals of a number such as $1,234.5. */
function numberFormat(pattern) {
  const parts = splitNumber(pattern);
  const fitting = [".", ","].filter((decimal) => numberValue(parts, decimal) !== null);
  const mark = /[.,]/.exec(parts.digits)?.[0];
  const decimal = fitting.length === 2 && mark ? (mark === "." ? "," : ".") : fitting[0];
  return { sign: parts.sign, decimal };
}

/** Sign, digits, exponent and minus of a cell; null for cells that have anything else. */
function splitNumber(text) {
  if ([...text].length > LONGEST_NUMBER) return null;
  const plain = stripped(Array.from(text, (letter) => PLAIN.get(letter) ?? letter).join(""));
  const inBrackets = plain.startsWith("(") && plain.endsWith(")");
  const parts = NUMBER_CELL.exec(inBrackets ? stripped(plain.slice(1, -1)) : plain);
  if (parts === null) return null;
  const [, first, before, second, digits, power = "", last, behind] = parts;
  const minus = first + second + last + (inBrackets ? "-" : ""), after = behind.trimEnd();
  const word = before.trimEnd().toLowerCase().replace(/\.+$/, "");
  const isCode = /^\p{L}+$/u.test(word) && !CURRENCIES.has(word);
  if (minus.length > 1 || (before !== "" && after !== "") || isCode) return null;
  if (after !== "" && !MAY_FOLLOW.test(after)) return null;
  const own = (before || after).trim().toLowerCase().replace(/\.+$/, "");
  const sign = [...own].length > 3 && own.endsWith("s") ? own.slice(0, -1) : own;
  return { sign, digits, power, isNegative: minus === "-" };
}

/** The number of the parts of a cell; null where it is none with this mark of decimals. */
function numberValue({ digits, power, isNegative }, decimal) {
  const parts = (decimal === "." ? WITH_POINT : WITH_COMMA).exec(digits);
  if (parts === null) return null;
  const whole = (parts.groups.whole ?? "").replace(/[,.' ]/g, "");
  if (/^0[0-9]/.test(whole)) return null;
  const number = Number(`${whole || "0"}.${parts.groups.decimals || "0"}${power}`);
  return isNegative ? -number : number;
}

function numberColumn({ fallback, marks_gaps: marks }, check) {
  const row = (value) => (marks ? [value ?? fallback, Number(value === null)] : [value ?? fallback]);
  return { width: 1 + Number(marks), row, check };
}

function categoryColumn(entry, own) {
  const values = textsOf(own, "values"), rare = textsOf(own, "rare");
  const other = entry.marks_rare ? values.length : -1;
  const places = new Map([...rare.map((key) => [key, other]), ...values.map((key, place) => [key, place])]);
  const width = values.length + Number(entry.marks_rare) + Number(entry.marks_gaps);
  return {
    width,
    places,
    row: (key) => {
      const dense = new Array(width).fill(0);
      const place = key !== null ? (places.get(key) ?? other) : entry.marks_gaps ? width - 1 : -1;
      if (place >= 0) dense[place] = 1;
      return dense;
    },
    check: (value) => {
      const key = categoryKey(value);
      if (4 * key.length > MAX_VALUE_BYTES && new TextEncoder().encode(key).length > MAX_VALUE_BYTES) {
        throw new RangeError(`is longer than ${MAX_VALUE_BYTES} bytes`);
      }
      if (entry.refuses_unseen && !places.has(key)) throw new RangeError("is a value that no row of training had");
      return key;
    },
  };
}

/** Texts of UTF-8 that follow each other. */
function textsOf(own, name) {
  const { data } = own(name), offsets = Array.from(own(`${name}.offsets`).data, Number);
  return offsets.slice(1).map((stop, place) => textOf(data.subarray(offsets[place], stop)));
}

/** The key of a category's value: 3, 3.0 and "3" are one value. Throws RangeError. */
function categoryKey(value) {
  if (typeof value === "boolean") return String(value);
  let text;
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new RangeError("must be a text or a number");
    if (Math.abs(value) >= 2 ** 53) throw new RangeError("is a number from 2^53 on: send it as a text");
    // Python writes small numbers as 1e-05.
    text = value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential().replace(/-(\d)$/, "-0$1") : String(value);
  } else if (typeof value === "string") {
    text = stripped(value);
    if (!isAscii(text)) return composed(text);
    if (["true", "false"].includes(text.toLowerCase())) return text.toLowerCase();
  } else {
    throw new RangeError("must be a text or a number");
  }
  return /^[+-]?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,15})?$/.test(text) ? plainDigits(text) : text;
}

function plainDigits(text) {
  const [whole, decimals = ""] = text.replace(/^\+/, "").split(".");
  const left = decimals.replace(/0+$/, "");
  const name = left ? `${whole}.${left}` : whole;
  return name === "-0" ? "0" : name;
}

/** Without the blanks around it, which are those of Python. */
function stripped(text) {
  return text.replace(BLANKS, "");
}

const isAscii = (text) => !/[^\x00-\x7f]/.test(text);

/** A text in Unicode's form NFC. Throws RangeError. */
function composed(text) {
  refuseUnknown(text);
  return isAscii(text) ? text : text.normalize("NFC");
}

/** Throws RangeError for characters that programs may know differently. */
function refuseUnknown(text) {
  if (isAscii(text)) return;
  for (const character of text) {
    const point = character.codePointAt(0);
    // Symbols and ideographs have one form and no case, whenever they came.
    if (point > 0x7f && !isKnown(point) && !/[\p{So}\p{Unified_Ideograph}]/u.test(character)) {
      throw new RangeError(`has the character U+${point.toString(16).toUpperCase()}, which Unicode 14 does not know`);
    }
  }
}

function dateColumn({ first, fallback, cycles, marks_gaps: marks, pattern }) {
  // Midnights have few digits; other moments may not be what JSON.parse makes of them.
  if (!Number.isSafeInteger(fallback) && fallback % DAY !== 0) {
    throw new StmsError("The usual moment of a date of this model is too far from 1970 for JavaScript.");
  }
  const begin = BigInt(first), usual = BigInt(fallback);
  const own = pattern === null ? ofIso : ofPattern(pattern);
  const moment = pattern === null || pattern.startsWith("%Y-") ? own : (text) => ofIso(text) ?? own(text);
  return {
    width: 1 + 2 * cycles.length + Number(marks),
    row: (value) => {
      const dense = [Number((value ?? usual) - begin) / YEAR];
      for (const cycle of cycles) {
        const period = PERIODS[cycle], rest = value === null ? 0n : ((value % period) + period) % period;
        const angle = 2 * Math.PI * (Number(rest) / Number(period));
        dense.push(...(value === null ? [0, 0] : [Math.sin(angle), Math.cos(angle)]));
      }
      return marks ? [...dense, Number(value === null)] : dense;
    },
    check: (value) => {
      if (typeof value !== "string") throw new RangeError("must be a text");
      const found = moment(stripped(value));
      if (found !== null) return found;
      throw new RangeError(`is not a date like ${pattern ?? "2024-05-06 or 2024-05-06T07:08:09+02:00"}`);
    },
  };
}

/** The moment of a date of ISO 8601, in microseconds since 1970, a BigInt; null for other texts. */
function ofIso(text) {
  const found = ISO.exec(text);
  if (found === null) return null;
  const [year, month, day, hour, minute, second] = found.slice(1, 7).map((part) => Number(part ?? 0));
  const [sign, hours, minutes] = [found[8] === "-" ? -1 : 1, Number(found[9] ?? 0), Number(found[10] ?? 0)];
  const offset = 60 * hours + minutes;
  if (offset >= 1440) return null;
  return momentOf(year, month, day, hour, minute - sign * offset, second, fractionOf(found[7]), minute);
}

/** A fraction of a second in microseconds; further digits are cut off. */
const fractionOf = (digits = "") => Number(digits.padEnd(6, "0").slice(0, 6));

/** The function from a text to its moment, by a pattern of Python's `strptime`. Throws StmsError. */
function ofPattern(pattern) {
  const names = [];
  const refuse = () => {
    throw new StmsError(`Dates of the pattern ${pattern} are not evaluated in JavaScript.`);
  };
  const source = pattern.replace(/[\\.^$*+?(){}[\]|]/g, "\\$&").replace(/\s+/g, "[\\t-\\r\\x1c-\\x20]+");
  const made = source.replace(/%(.?)/g, (_, letter) => {
    if (letter === "%") return "%";
    if (!Object.hasOwn(DIRECTIVES, letter) || names.includes(letter)) refuse();
    names.push(letter);
    return `(${DIRECTIVES[letter]})`;
  });
  if (!isAscii(pattern) || names.includes("Y") === names.includes("y")) refuse();
  const known = new RegExp(`^${made}`, "i");
  return (text) => {
    if (!isAscii(text)) throw new RangeError("has characters that are not evaluated in JavaScript");
    const found = known.exec(text);
    if (found === null || found[0].length !== text.length) return null;
    const part = (name, usual) => (names.includes(name) ? Number(found[1 + names.indexOf(name)]) : usual);
    const short = part("y", 0), year = part("Y", short + (short < 69 ? 2000 : 1900));
    const fraction = names.includes("f") ? fractionOf(found[1 + names.indexOf("f")]) : 0;
    const minute = part("M", 0);
    return momentOf(year, part("m", 1), part("d", 1), part("H", 0), minute, part("S", 0), fraction, minute);
  };
}

/** Microseconds since 1970; null if there is no such day or time. said: the minute before an offset moved it. */
function momentOf(year, month, day, hour, minute, second, fraction, said) {
  const midnight = new Date(0);
  midnight.setUTCFullYear(year, month - 1, day);
  const isDay = year >= 1 && midnight.getUTCMonth() === month - 1 && midnight.getUTCDate() === day;
  if (!isDay || hour > 23 || said > 59 || second > 59) return null;
  return 1000n * BigInt(midnight.getTime() + 60000 * (60 * hour + minute) + 1000 * second) + BigInt(fraction);
}

/** The known terms of a column by families: the column of each by its number, its weight, that of others. */
function termTables(described, own) {
  return described.map(({ family, unknown_idf: unknown }) => {
    const { data } = own(`${family}.terms`), idf = Array.from(own(`${family}.idf`).data, Number);
    if (!FAMILIES.includes(family)) throw new StmsError(`The encoder has terms of an unknown family ${family}.`);
    const places = new Map(Array.from(data, (term, place) => [BigInt.asUintN(64, term), place]));
    return { family, places, idf, unknown, size: idf.length };
  });
}

/** Append the known terms of a text; each family has the norm 1/√families over all its terms. */
function addTerms(column, text, columns, values) {
  const letters = lettersOf(text), words = wordsOf(letters);
  let first = column.firstTerm;
  for (const { family, places, idf, unknown, size } of column.tables) {
    const counts = new Map();
    for (const term of termsOf(family, letters, words)) counts.set(term, (counts.get(term) ?? 0) + 1);
    const found = [];
    let high = 0, low = 0;
    for (const [term, count] of counts) {
      const place = places.get(term);
      const frequency = FREQUENCIES[Math.min(count, FREQUENCIES.length - 1)];
      const weight = Math.floor((frequency * (place === undefined ? unknown : idf[place])) / UNIT);
      // The sum of squares is exact in two parts, and rounded once.
      high += Math.floor((weight * weight) / 2 ** 26);
      low += (weight * weight) % 2 ** 26;
      if (place !== undefined) found.push([place, weight]);
    }
    const norm = Math.sqrt(Number(BigInt(high) * 67108864n + BigInt(low)) * column.tables.length);
    for (const [place, weight] of found.sort((a, b) => a[0] - b[0])) {
      columns.push(first + place);
      values.push(weight / norm);
    }
    first += size;
  }
}

/** The characters of words, in lower case, as code points; one blank between two words, before and after them. */
function lettersOf(text) {
  refuseUnknown(text);
  const letters = [BLANK];
  for (const character of composed(firstBytes(text).toLowerCase())) {
    const point = character.codePointAt(0);
    if (classOf(point) !== BETWEEN) letters.push(point);
    else if (letters.at(-1) !== BLANK) letters.push(BLANK);
  }
  if (letters.at(-1) !== BLANK) letters.push(BLANK);
  return letters;
}

/** The first 64 KiB of a text in UTF-8, whole characters. */
function firstBytes(text) {
  if (4 * text.length <= MAX_TEXT_BYTES) return text;
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= MAX_TEXT_BYTES) return text;
  let end = MAX_TEXT_BYTES;
  while ((bytes[end] & 0xc0) === 0x80) end--;
  return textOf(bytes.subarray(0, end));
}

/** The words of letters, and whether each is of a script with spaces between words. */
function wordsOf(letters) {
  const words = [];
  for (let start = 0; start < letters.length; start++) {
    const kind = classOf(letters[start]);
    if (kind === ALONE) {
      words.push([letters.slice(start, start + 1), false]);
      if (classOf(letters[start + 1] ?? BLANK) === ALONE) words.push([letters.slice(start, start + 2), false]);
    } else if (kind === WORD) {
      let stop = start + 1;
      while (classOf(letters[stop]) === WORD) stop++;
      if (stop - start > 1 || letters[start] > 0x7f) words.push([letters.slice(start, stop), true]);
      start = stop - 1;
    }
  }
  return words;
}

/** The numbers of all terms of a family. */
function* termsOf(family, letters, words) {
  if (family === "words") {
    for (const [word] of words) yield numberOf(word, family);
  } else if (family === "pairs") {
    const spaced = words.filter(([, isSpaced]) => isSpaced).map(([word]) => numberOf(word, "words"));
    for (let k = 1; k < spaced.length; k++) yield mixed(spaced[k - 1] * PAIR + spaced[k], family);
  } else {
    const length = Number(family.at(-1));
    for (let start = 0; start + length <= letters.length; start++) {
      const run = letters.slice(start, start + length);
      if (!run.slice(1, -1).includes(BLANK)) yield numberOf(run, family);
    }
  }
}

const kept = new Map();

/** Σ_j (c_j + 1) B^(j−1) mod 2^64 over code points, mixed. */
function numberOf(points, family) {
  const name = `${family}${String.fromCodePoint(...points)}`;
  let number = kept.get(name);
  if (number === undefined) {
    number = 0n;
    for (let j = points.length - 1; j >= 0; j--) number = BigInt.asUintN(64, number * BASE + BigInt(points[j] + 1));
    number = mixed(number, family);
    if (kept.size >= MAX_KEPT) kept.clear();
    kept.set(name, number);
  }
  return number;
}

function mixed(number, family) {
  let found = BigInt.asUintN(64, number * BigInt(1 + 2 * FAMILIES.indexOf(family)));
  found ^= found >> 32n;
  for (let times = 0; times < 2; times++) {
    found = BigInt.asUintN(64, found * MIX);
    found ^= found >> 32n;
  }
  return found;
}

/** Whether a character stands between words, belongs to one, or is one. */
function classOf(point) {
  if (point < 0x80) return isWithin(ALPHANUMERIC, point) ? WORD : BETWEEN;
  if (point > 0xffff) return ALONE;
  if (isWithin(PUNCTUATION, point)) return BETWEEN;
  return isWithin(SPACELESS, point) ? ALONE : WORD;
}

const isWithin = (ranges, point) => ranges.some(([first, last]) => first <= point && point <= last);

/** Whether Unicode 14 has a character: its place lies between an odd number of bounds and the end. */
function isKnown(point) {
  let low = 0, high = BOUNDS.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (BOUNDS[middle] <= point) low = middle + 1;
    else high = middle;
  }
  return low % 2 === 1;
}

const DAY = 86400e6;
const YEAR = 365.25 * DAY;
const PERIODS = { hour: BigInt(DAY), weekday: BigInt(7 * DAY), yearday: BigInt(YEAR) };
const ISO =
  /^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?(?:Z|([+-])(\d{2})(?::?(\d{2}))?)?)?$/;
const PLAIN_NUMBER = /^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?$/;
const LONGEST_NUMBER = 48;
/** Characters of numbers, and others that mean the same. */
const PLAIN = new Map(
  [
    ["-", "\u2212\u2012\u2013\u2014\ufe63\uff0d"],
    ["'", "\u2019\u2018\u02bc\u2032\u00b4`\u066c"],
    ["%", "\u066a\uff05\ufe6a"],
    [" ", "\t\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000"],
    ["+", "\uff0b"], [".", "\uff0e"], [",", "\uff0c"], ["(", "\uff08"], [")", "\uff09"], ["$", "\uff04"],
    ["", "\u200b\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"],
  ].flatMap(([like, others]) => [...others].map((other) => [other, like])),
);
for (const zero of "٠۰०০੦૦௦౦๐０") {
  for (let digit = 0; digit < 10; digit++) PLAIN.set(String.fromCodePoint(zero.codePointAt(0) + digit), String(digit));
}
const SYMBOLS = "$¢£¤¥֏؋৲৳৻૱௹฿៛\u20a0-\u20cf\ua838\ufdfc\ufe69\uffe0\uffe1\uffe5\uffe6";
const CURRENCIES = new Set(
  (
    "usd eur gbp jpy chf cny rmb inr rub brl krw sek nok dkk pln czk huf ron bgn try tl uah ils zar mxn cad aud nzd sgd" +
    " hkd twd thb idr myr php vnd aed sar egp ngn kes ars clp cop pen rs kr fr sfr zł kč ft lei лв руб р rm rp bs ca"
  ).split(" "),
);
const MAY_FOLLOW = new RegExp(`[\\p{L}\\p{Nl}\\p{No}%‰°"'+${SYMBOLS}]`, "u");
const NUMBER_CELL = new RegExp(
  `^([+-]?) ?((?:(?:[\\p{L}\\p{Nl}\\p{No}]{1,4}\\.?|[\\p{L}\\p{Nl}\\p{No}]{0,3}[%${SYMBOLS}]) ?)?)([+-]?) ?` +
    "([.,٫]?[0-9](?:[0-9.,' ٫]*[0-9])?)([eE][+\\-]?[0-9]{1,3}(?![\\p{L}\\p{Nl}\\p{No}]))?" +
    "(?:[.,]-{1,2}(?![^ ]))?(-?)( ?(?:[^\\p{Nd}\\s,;:\\(\\)\\[\\]\\{\\}_#@\\-][^\\p{Nd},;:\\(\\)\\[\\]\\{\\}_#@\\-]{0,15})?)$",
  "u",
);
const WITH_POINT = new RegExp(
  "^(?<whole>[0-9]+|[1-9][0-9]{0,2}(?<mark>[, '])[0-9]{3}(?:\\k<mark>[0-9]{3})*|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3})?" +
    "(?:[.٫](?<decimals>[0-9]*))?$",
);
const WITH_COMMA =
  /^(?<whole>[0-9]+|[1-9][0-9]{0,2}(?<mark>[. '])[0-9]{3}(?:\k<mark>[0-9]{3})*)?(?:[,٫](?<decimals>[0-9]*))?$/;
const DIRECTIVES = {
  Y: "\\d{4}", y: "\\d{2}", m: "1[0-2]|0[1-9]|[1-9]", d: "3[01]|[12]\\d|0[1-9]|[1-9]| [1-9]",
  H: "2[0-3]|[01]\\d|\\d", M: "[0-5]\\d|\\d", S: "6[01]|[0-5]\\d|\\d", f: "\\d{1,6}",
};
const BLANKS = (() => {
  const blank = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
  return new RegExp(`^${blank}|${blank}$`, "g");
})();

const FAMILIES = ["words", "pairs", "characters3", "characters4", "characters5"];
const BASE = 0x9e3779b97f4a7c15n, MIX = 0xd6e8feb86659fd93n, PAIR = 0xc2b2ae3d27d4eb4fn;
const UNIT = 65536;
/** log(1 + c) of each count c, in multiples of 2^−16. */
const FREQUENCIES = Array.from({ length: 256 }, (_, count) => Math.round(UNIT * Math.log1p(count)));
const BLANK = 0x20, BETWEEN = 0, WORD = 1, ALONE = 2;
const ALPHANUMERIC = [[0x61, 0x7a], [0x30, 0x39], [0x41, 0x5a]];
/** As core/data/characters.py has them. */
const PUNCTUATION = [
  [0x80, 0xa9], [0xab, 0xb4], [0xb6, 0xb9], [0xbb, 0xbf], [0xd7, 0xd7], [0xf7, 0xf7], [0x37e, 0x37e],
  [0x387, 0x387], [0x55a, 0x55f], [0x589, 0x58a], [0x5be, 0x5be], [0x5c0, 0x5c0], [0x5c3, 0x5c3],
  [0x5f3, 0x5f4], [0x60c, 0x60d], [0x61b, 0x61f], [0x66a, 0x66d], [0x6d4, 0x6d4], [0x964, 0x965],
  [0x970, 0x970], [0xe4f, 0xe4f], [0xe5a, 0xe5b], [0x104a, 0x104f], [0x17d4, 0x17da], [0x1680, 0x1680],
  [0x2000, 0x206f], [0x20a0, 0x20cf], [0x2100, 0x214f], [0x2190, 0x2bff], [0x3000, 0x3004],
  [0x3008, 0x3020], [0x3030, 0x3030], [0x30a0, 0x30a0], [0x30fb, 0x30fb], [0xfe10, 0xfe6f],
  [0xfeff, 0xfeff], [0xff01, 0xff0f], [0xff1a, 0xff20], [0xff3b, 0xff40], [0xff5b, 0xff65],
  [0xffe0, 0xffff],
];
const SPACELESS = [
  [0xe01, 0xe4e], [0xe81, 0xedf], [0x1000, 0x103f], [0x1780, 0x17d3], [0x3005, 0x3007], [0x3041, 0x3096],
  [0x30a1, 0x30fa], [0x30fc, 0x30ff], [0x3400, 0x4dbf], [0x4e00, 0x9fff], [0xf900, 0xfaff],
  [0xff66, 0xff9f],
];
/** Where the ranges of characters of Unicode 14 begin and end: distances, in base 36. */
const BOUNDS = `
  0 oo 2 6 4 7 1 1 1 k 1 b1 1 12 2 1e 2 3 1 1j 8 r 4 6 b 7i 1 1o 2 2t e 1n 2 1d 2 f 1 s 2 1 1 b 5 v 1 2 6
  6k 1 8 2 2 2 m 1 7 1 1 3 4 2 9 2 2 2 4 8 1 4 2 1 5 2 p 2 3 1 6 4 2 2 m 1 7 1 2 1 2 1 2 2 1 1 5 4 2 2 3
  3 1 7 4 1 1 7 h a 3 1 9 1 3 1 m 1 7 1 2 1 5 2 a 1 3 1 3 2 1 f 4 2 c 7 7 1 3 1 8 2 2 2 m 1 7 1 2 1 5 2 9
  2 2 2 3 7 3 4 2 1 5 2 i a 2 1 6 3 3 1 4 3 2 1 1 1 2 3 2 3 3 3 c 4 5 3 3 1 4 2 1 6 1 e l 5 d 1 3 1 n 1 g
  2 9 1 3 1 4 7 2 1 3 2 1 2 4 2 a 7 m 1 3 1 n 1 a 1 5 2 9 1 3 1 4 7 2 6 2 1 4 2 a 1 2 d d 1 3 1 1f 1 3 1
  6 4 g 2 q 1 3 1 i 3 o 1 9 1 1 2 7 3 1 4 6 1 1 1 8 6 a 2 3 c 1m 4 t 11 2 1 1 1 5 1 o 1 1 1 n 2 5 1 1 1 6
  2 a 2 4 w 20 1 10 4 13 1 10 1 f 1 d 11 5i 1 1 5 1 2 ah 1 4 2 7 1 1 1 4 2 15 1 4 2 x 1 4 2 7 1 1 1 4 2 f
  1 1l 1 4 2 1v 2 w 3 q 6 2e 2 6 2 il 3 2h 7 m 9 o 9 k c d 1 3 1 2 c 2m 2 a 6 a 6 q 6 2h 7 17 5 1y a v 1
  c 4 c 4 1 3 16 2 5 b 18 4 q 6 b 3 1q 2 1t 1 t 2 b 6 a 6 e 2 v 1d 25 3 1b 1 38 8 1o 3 f 3 1o 7 17 2 b 8
  17 5 eu 2 6 2 12 2 6 2 8 1 1 1 1 1 1 1 v 2 1h 1 f 1 e 2 6 1 j 2 3 1 9 1 2t 1 c 2 r 1 d 3 x f x f 3w 4
  if p b l 1ec 2 w 1 9p 5 19 1 1 5 1 2 1k 7 2 e o 9 7 1 7 1 7 1 7 1 7 1 7 1 7 1 7 1 3i y q 1 2h c 5y q c
  4 1s 1 2e 2 2v 5 17 1 2m 1 2c c 1b 1 mlp 3 1j 9 9o k 54 8 5n 5 2 1 1 1 5 o 1n 3 a 6 1k 8 1y 8 c 6 38 b
  u 3 26 1 b 4 x 1 1j 9 e 2 a 2 2v o s a 6 2 6 2 6 9 7 1 7 1 1o 4 3i 2 a 6 8mc c n 4 1d 1l0 57y 2 2y 12 7
  c 5 5 q 1 5 1 1 1 2 1 2 1 3h g cd 2 1i 7 1 w 16 6 1f 1 j 1 4 4 5 1 3r 2 1 1 5a 3 6 2 6 2 6 2 3 3 7 1 7
  a 5 2 c 1 q 1 j 1 2 1 f 2 e y 3f 5 3 4 19 3 2g 1 d 3 1 1b 1a 3m t 3 1d f s 4 10 9 u 5 17 5 u 1 11 4 e
  16 4e 2 a 6 10 4 10 4 14 8 1g b c 1 f 1 7 1 2 1 b 1 f 1 7 1 2 1v 8n 9 m a 8 o 6 1 16 1 9 1x 6 2 1 1 18
  1 2 3 1 2 n 1 20 8 9 1c j 1 2 5 x 3 r 5 1 1s 1k 4 k 2 1e 1 2 5 8 1 3 1 t 2 3 4 a 7 9 7 1s w 13 4 c 9 1i
  3 t 2 r 5 q 7 4 c 7 28 21 1j 1f d 1f 7 1a 8 a 86 v 1 16 1 3 2 2 26 14 8 16 m q 12 s k n 9 26 4 10 9 1w
  a 1 2 p 7 a 6 1h 1 i 8 13 9 2o 1 k b i 1 18 1t 7 1 1 1 4 1 f 1 b 6 1n 5 a 6 4 1 8 2 2 2 m 1 7 1 2 1 5 1
  a 2 2 2 3 2 1 6 1 5 7 2 7 3 5 3v 2k 1 5 u 20 8 a 4m 1i 2 12 y 1x b a 6 d j 1m 6 a 1i r 2 f 4 n 55 1o 2s
  2b c 8 2 1 2 8 1 2 1 u 1 2 2 c 9 a 1y 8 2 1a 2 b r 20 8 2b d 21 7b 9 1 19 1 e a t 3 w 2 m 1 e 21 7 1 2
  1 18 3 1 1 2 1 9 8 a 6 6 1 2 1 11 1 2 1 6 7 a 8m p 53 1 f 1e d pn 2u 33 1 5 b 5g 218 2r d tr 1 9 347 g7
  6nt ft 7 v 1 a 4 29 1 a 6 u 2 6 a 1y a a 1 7 1 l 5 j j4 2j 2t 23 4 1l 7 h 1s 5 b 2 e 4qg 8 ye 16 9 6w7
  4 1 7 1 2 1 83 19 3 h 4 8 b0 1s4 2z 5 d 3 9 7 a 2 8 3mk 1a 2 n 9 38 1o 6u a 13 2 5e l 1y 4a k c 2f 9 p
  3r 2d 1 1z 1 2 2 1 2 2 2 4 1 c 1 1 1 7 1 1t 1 4 2 8 1 7 1 s 1 4 1 5 1 1 3 7 1 9g 2 84 2 ji f 5 1 f uo v
  69 7 1 h 2 7 1 2 1 5 5x 19 3 e 2 a 4 2 8w v h 1m 5 1 yo 7 1 4 1 2 1 f 1 5h 2 g 15 24 4 a 4 2 lt 1w 24
  1p 5e 4 1 r 1 2 1 1 2 1 1 a 1 4 1 1 1 1 6 1 4 1 1 1 1 1 1 3 1 2 1 1 2 1 1 1 1 1 1 1 1 1 1 2 1 1 2 4 1 7
  1 4 1 4 1 1 1 a 1 h 5 3 1 5 1 h 1g 2 7i 18 4 2s c f 2 f 1 f 1 11 a 4u 1k t d 18 4 9 7 2 e 6 4a rc 5 g 3
  d 3 38 c 2h 7 c 4 1 f c 4 1k 8 a 6 14 8 u 2 2 26 9g c e 2 5 3 5 3 7 9 t 3 b 5 6 a a 6 8 8 7 9 43 1 1j
  11 a sm wyo w 37d 7 66 2 4g2 e 5rl 2e7 f2 15u 3t7 fcfq 1 u 2o 3k 6o 1e6o 1eke 2 1eke
`.trim().split(/\s+/).map((distance) => parseInt(distance, 36));
for (let k = 1; k < BOUNDS.length; k++) BOUNDS[k] += BOUNDS[k - 1];
