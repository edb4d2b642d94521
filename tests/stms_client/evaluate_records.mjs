// What an encoder makes of records, and a student of that: node evaluate_records.mjs ENCODER PACKAGES RECORDS OUTPUT
// Records are lines of JSON; null stands for one that is refused. Of the first 300 records the rows are said.
import { readFileSync, writeFileSync } from "node:fs";
import { Encoder, StmsError, Student } from "../../stms_client/js/stms-local.mjs";

const [, , encoded, packages, records, output] = process.argv;
const students = packages.split(",").map((name) => new Student(new Uint8Array(readFileSync(name))));
const lines = [];
let encoder;
try {
  encoder = new Encoder(new Uint8Array(readFileSync(encoded)));
} catch (error) {
  if (!(error instanceof StmsError)) throw error;
  lines.push(JSON.stringify({ refused: error.message }));
}
for (const [place, line] of readFileSync(records, "utf8").trimEnd().split("\n").entries()) {
  if (encoder === undefined) break;
  try {
    const record = JSON.parse(line), isShown = place < 300 && !Array.isArray(record);
    const row = isShown ? encoder.encode(record) : {};
    const found = students.map((student) => {
      const { score, match } = student.decide(record, encoder);
      return [score, match];
    });
    lines.push(JSON.stringify({ ...row, dense: Array.from(row.dense ?? []), found }));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    lines.push(JSON.stringify({ refused: error.message }));
  }
}
writeFileSync(output, lines.join("\n"));
