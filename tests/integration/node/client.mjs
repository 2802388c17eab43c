// The AWS SDK for JavaScript as a client of `every_action`: `node client.mjs URL REGION`.

import { createInterface } from "node:readline";
import * as sns from "@aws-sdk/client-sns";
import * as sqs from "@aws-sdk/client-sqs";

const [endpoint, region] = process.argv.slice(2);
const clients = {
  sns: [sns, new sns.SNSClient({ endpoint, region })],
  sqs: [sqs, new sqs.SQSClient({ endpoint, region })],
};

for await (const line of createInterface({ input: process.stdin })) {
  const { service, action, input } = JSON.parse(line);
  const [library, client] = clients[service];
  try {
    const { $metadata, ...told } = await client.send(new library[`${action}Command`](input));
    console.log(JSON.stringify({ told }));
  } catch (error) {
    console.log(JSON.stringify({ refused: error.Code ?? error.name }));
  }
}
