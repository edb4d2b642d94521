// What JSON.stringify and a local evaluator make of values: node evaluate_values.mjs ENCODER PACKAGE RECORD EXPRESSIONS
// EXPRESSIONS is a list of JSON; in each of them `record` is the RECORD. Prints one list for each: the JSON or null, the
// score or null, and why there is none.
import { readFileSync } from "node:fs";
import { Encoder, Student } from "../../stms_client/js/stms-local.mjs";

const [, , encoded, packed, text, expressions] = process.argv;
const encoder = new Encoder(new Uint8Array(readFileSync(encoded)));
const student = new Student(new Uint8Array(readFileSync(packed)));
const found = JSON.parse(expressions).map((expression) => {
  const value = new Function("record", `return (${expression});`)(JSON.parse(text));
  let json = null;
  try {
    json = JSON.stringify(value) ?? null;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  try {
    return [json, student.decide(value, encoder).score, ""];
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return [json, null, error.message];
  }
});
console.log(JSON.stringify(found));
