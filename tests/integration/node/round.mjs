// The AWS SDK for JavaScript and sqs-consumer go round: `node round.mjs URL KEY SECRET`; prints what
// was found as JSON. The SDK checks the MD5 of every body and attribute by itself.

import {
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  ListQueueTagsCommand,
  PurgeQueueCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SetQueueAttributesCommand,
  SQSClient,
  TagQueueCommand,
  UntagQueueCommand,
  paginateListQueues,
} from "@aws-sdk/client-sqs";
import {
  CreateTopicCommand,
  DeleteTopicCommand,
  PublishBatchCommand,
  PublishCommand,
  SNSClient,
  SubscribeCommand,
  UnsubscribeCommand,
} from "@aws-sdk/client-sns";
import { Consumer } from "sqs-consumer";

const [url, accessKeyId, secretAccessKey] = process.argv.slice(2);
const options = {
  endpoint: url,
  region: "us-east-1",
  credentials: { accessKeyId, secretAccessKey },
  maxAttempts: 1,
};
const sqs = new SQSClient(options);
const sns = new SNSClient(options);
const told = {};

const make = async (name, Attributes = {}) =>
  (await sqs.send(new CreateQueueCommand({ QueueName: name, Attributes }))).QueueUrl;

const takeAll = async (QueueUrl, count) => {
  const found = [];
  while (found.length < count) {
    const { Messages } = await sqs.send(
      new ReceiveMessageCommand({
        QueueUrl,
        MaxNumberOfMessages: 10,
        WaitTimeSeconds: 5,
        MessageAttributeNames: ["All"],
        MessageSystemAttributeNames: ["All"],
      }),
    );
    if (Messages === undefined) throw new Error(`${found.length} of ${count} came`);
    found.push(...Messages);
  }
  return found;
};

const messages = async () => {
  const QueueUrl = await make("node");
  await sqs.send(new TagQueueCommand({ QueueUrl, Tags: { a: "b", c: "é" } }));
  await sqs.send(new UntagQueueCommand({ QueueUrl, TagKeys: ["a"] }));
  told.tags = (await sqs.send(new ListQueueTagsCommand({ QueueUrl }))).Tags;
  await sqs.send(new SetQueueAttributesCommand({ QueueUrl, Attributes: { DelaySeconds: "0" } }));
  const MessageAttributes = {
    text: { DataType: "String", StringValue: "é <&>" },
    bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
  };
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "é ☃ <&>\r\n", MessageAttributes }));
  const Entries = [1, 2, 3].map((n) => ({ Id: `${n}`, MessageBody: `${n}`, MessageAttributes }));
  const sent = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
  told.sent = sent.Successful.map((one) => one.Id);
  const found = await takeAll(QueueUrl, 4);
  told.bodies = found.map((one) => one.Body).sort();
  told.bytes = [...found[0].MessageAttributes.bytes.BinaryValue];
  const ReceiptHandle = found[0].ReceiptHandle;
  await sqs.send(
    new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 }),
  );
  const [again] = await takeAll(QueueUrl, 1);
  told.again = again.MessageId === found[0].MessageId;
  await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: again.ReceiptHandle }));
  const ends = found.slice(1).map((one, n) => ({ Id: `${n}`, ReceiptHandle: one.ReceiptHandle }));
  const ended = await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries: ends }));
  told.deleted = ended.Successful.length;
  const { Attributes } = await sqs.send(
    new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }),
  );
  told.left = Attributes.ApproximateNumberOfMessages;
  const pages = [];
  for await (const page of paginateListQueues({ client: sqs, pageSize: 10 }, {})) {
    pages.push(...page.QueueUrls);
  }
  told.listed = pages.includes(QueueUrl);
  await sqs.send(new PurgeQueueCommand({ QueueUrl }));
  await sqs.send(new DeleteQueueCommand({ QueueUrl }));
  try {
    await sqs.send(new GetQueueUrlCommand({ QueueName: "node" }));
  } catch (error) {
    told.refused = error instanceof QueueDoesNotExist;
    told.code = error.name;
  }
};

const consume = async () => {
  const queueUrl = await make("consumed", { VisibilityTimeout: "1" });
  for (let n = 0; n < 12; n += 1) {
    await sqs.send(new SendMessageCommand({ QueueUrl: queueUrl, MessageBody: `${n}` }));
  }
  const seen = [];
  let failures = 0;
  await new Promise((resolve, reject) => {
    const consumer = Consumer.create({
      queueUrl,
      sqs,
      batchSize: 10,
      waitTimeSeconds: 2,
      terminateVisibilityTimeout: true,
      handleMessage: async (message) => {
        if (message.Body === "5" && failures === 0) {
          failures += 1;
          throw new Error("once");
        }
        seen.push(Number(message.Body));
        if (seen.length === 12) consumer.stop();
        return message;
      },
    });
    consumer.on("error", reject);
    consumer.on("stopped", resolve);
    consumer.start();
  });
  told.consumed = seen.sort((a, b) => a - b);
  told.failures = failures;
};

const topics = async () => {
  const { TopicArn } = await sns.send(new CreateTopicCommand({ Name: "node" }));
  const QueueUrl = await make("node-subscriber");
  const { Attributes } = await sqs.send(
    new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["QueueArn"] }),
  );
  const { SubscriptionArn } = await sns.send(
    new SubscribeCommand({
      TopicArn,
      Protocol: "sqs",
      Endpoint: Attributes.QueueArn,
      Attributes: { RawMessageDelivery: "true" },
      ReturnSubscriptionArn: true,
    }),
  );
  await sns.send(new PublishCommand({ TopicArn, Message: "one é" }));
  const PublishBatchRequestEntries = [{ Id: "a", Message: "two" }];
  await sns.send(new PublishBatchCommand({ TopicArn, PublishBatchRequestEntries }));
  told.published = (await takeAll(QueueUrl, 2)).map((one) => one.Body).sort();
  await sns.send(new UnsubscribeCommand({ SubscriptionArn }));
  await sns.send(new DeleteTopicCommand({ TopicArn }));
};

await messages();
await consume();
await topics();
console.log(JSON.stringify(told));
process.exit(0);
