// Asks a server with the generated client, and prints what it answers.
import { Configuration, ModelsApi, OperationApi, QueriesApi } from "./client";

async function main(address: string, key: string): Promise<void> {
  const configuration = new Configuration({ basePath: address, accessToken: key });
  const queries = new QueriesApi(configuration);
  const who = await new OperationApi(configuration).whoami();
  const models = await new ModelsApi(configuration).listModels();
  const one = await queries.query({ model: "pets", _class: "cat", queryRequest: { x: [1, 0, 0] } });
  const many = await queries.query({
    model: "pets",
    _class: "größe/1:x",
    queryRequest: { rows: [[0, 0, 1], [0, 0, 0]] },
  });
  const several = await queries.queryClasses({
    model: "pets",
    classesQueryRequest: { x: [0, 5, 0], classes: new Set(["cat", "dog"]) },
  });
  console.log(JSON.stringify({ name: who.name, models: models.data.map((each) => each.name), one, many, several }));
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exit(1);
});
