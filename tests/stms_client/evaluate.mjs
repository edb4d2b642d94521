// Scores, matches and probabilities of rows by a package: node evaluate.mjs PACKAGE ROWS OUTPUT [MAP]
import { readFileSync, writeFileSync } from "node:fs";
import { namedMap, readMap, Student } from "../../stms_client/js/stms-local.mjs";

const [, , packaged, rows, output, map] = process.argv;
const content = new Uint8Array(readFileSync(packaged)), maps = new Map();
if (map !== undefined) maps.set(namedMap(content), readMap(new Uint8Array(readFileSync(map))));
const student = new Student(content, maps);
const bytes = readFileSync(rows);
const table = new Float64Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
const n = table.length / student.columns;
const found = new Float64Array(3 * n);
for (let i = 0; i < n; i++) {
  const decision = student.decide(table.subarray(i * student.columns, (i + 1) * student.columns));
  found[3 * i] = decision.score;
  found[3 * i + 1] = decision.match ? 1 : 0;
  found[3 * i + 2] = decision.probability ?? NaN;
}
writeFileSync(output, new Uint8Array(found.buffer));
