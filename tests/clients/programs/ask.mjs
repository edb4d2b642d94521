// Asks a server with the fetch of Node.js at its defaults.
// Arguments: address (host:port), API key, a CSV file. Prints a line for each request: status, a tab, body.

import { readFile } from "node:fs/promises";

const [address, key, file] = process.argv.slice(2);

async function ask(method, path, body, options = {}) {
  const headers = { Authorization: `Bearer ${key}` };
  const response = await fetch(`http://${address}${path}`, { method, headers, body, ...options });
  const text = await response.text();
  console.log(`${response.status}\t${text}`);
  return text;
}

const query = JSON.stringify({ x: [1, 5, 0] });
const tensor = { name: "x", shape: [1, 3], datatype: "FP64", data: [1, 5, 0] };
await ask("GET", "/v1/models");
await ask("HEAD", "/livez");
await ask("POST", "/v1/models/pets/classes/cat:query", query);
// A stream has no declared length, so that it is sent in chunks.
await ask("POST", "/v1/models/pets/classes/cat:query", new Blob([query]).stream(), { duplex: "half" });
await ask("POST", "/v2/models/pets:cat/infer", JSON.stringify({ inputs: [tensor] }));
const dataset = JSON.parse(await ask("POST", "/v1/datasets?name=node", await readFile(file)));
await ask("POST", "/v1/training-jobs", JSON.stringify({ dataset_id: dataset.id, model: "node" }));
