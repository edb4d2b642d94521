// An OpenID provider on loopback. Each line of its input adds a key of an algorithm; its output says when that is done.
import { createInterface } from 'node:readline';
import { OAuth2Server } from 'oauth2-mock-server';

const server = new OAuth2Server();
await server.issuer.keys.generate('RS256');
server.service.on('beforeTokenSigning', (token, request) => {
  token.payload.sub = request.body.client_id;
});
await server.start(Number(process.argv[2]), '127.0.0.1');
console.log(server.issuer.url);
for await (const line of createInterface({ input: process.stdin })) {
  const key = await server.issuer.keys.generate(line);
  console.log(key.kid);
}
await server.stop();
