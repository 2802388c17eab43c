import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sns.SnsClient;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.batchmanager.SqsAsyncBatchManager;
import software.amazon.awssdk.services.sqs.model.*;

/** The AWS SDK for Java goes round; it checks every digest by itself. Prints a line for each step. */
public final class Round {
    private static SqsClient sqs;

    public static void main(String[] words) throws Exception {
        URI url = URI.create(words[0]);
        var credentials =
                StaticCredentialsProvider.create(AwsBasicCredentials.create(words[1], words[2]));
        sqs =
                SqsClient.builder()
                        .endpointOverride(url)
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .build();
        messages();
        order();
        try (SqsAsyncClient client =
                SqsAsyncClient.builder()
                        .endpointOverride(url)
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .build()) {
            batches(client);
        }
        try (SnsClient sns =
                SnsClient.builder()
                        .endpointOverride(url)
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .build()) {
            topics(sns);
        }
        sqs.close();
        System.exit(0);
    }

    private static String make(String name, Map<QueueAttributeName, String> attributes) {
        return sqs.createQueue(call -> call.queueName(name).attributes(attributes)).queueUrl();
    }

    private static List<Message> takeAll(String url, int count) {
        List<Message> found = new ArrayList<>();
        while (found.size() < count) {
            List<Message> more =
                    sqs.receiveMessage(
                                    call ->
                                            call.queueUrl(url)
                                                    .maxNumberOfMessages(10)
                                                    .waitTimeSeconds(5)
                                                    .messageAttributeNames("All")
                                                    .messageSystemAttributeNames(
                                                            MessageSystemAttributeName.ALL))
                            .messages();
            if (more.isEmpty()) {
                throw new IllegalStateException(found.size() + " of " + count + " came");
            }
            found.addAll(more);
        }
        return found;
    }

    private static void messages() {
        String url = make("java", Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "60"));
        sqs.tagQueue(call -> call.queueUrl(url).tags(Map.of("a", "b", "c", "é")));
        sqs.untagQueue(call -> call.queueUrl(url).tagKeys("a"));
        System.out.println("tags " + sqs.listQueueTags(call -> call.queueUrl(url)).tags());
        Map<String, MessageAttributeValue> attributes =
                Map.of(
                        "text",
                        MessageAttributeValue.builder().dataType("String").stringValue("é").build(),
                        "bytes",
                        MessageAttributeValue.builder()
                                .dataType("Binary")
                                .binaryValue(SdkBytes.fromByteArray(new byte[] {0, -1}))
                                .build());
        sqs.sendMessage(
                call -> call.queueUrl(url).messageBody("é <&>").messageAttributes(attributes));
        var sent =
                sqs.sendMessageBatch(
                        call ->
                                call.queueUrl(url)
                                        .entries(
                                                entry -> entry.id("1").messageBody("one"),
                                                entry -> entry.id("2").messageBody("")));
        System.out.println("sent " + sent.successful().size() + " failed " + sent.failed().size());
        var bodies = new TreeSet<String>();
        List<Message> found = takeAll(url, 2);
        for (Message one : found) {
            bodies.add(one.body());
        }
        System.out.println("bodies " + bodies);
        for (Message one : found) {
            sqs.changeMessageVisibility(
                    call ->
                            call.queueUrl(url)
                                    .receiptHandle(one.receiptHandle())
                                    .visibilityTimeout(30));
            sqs.deleteMessage(call -> call.queueUrl(url).receiptHandle(one.receiptHandle()));
        }
        var told =
                sqs.getQueueAttributes(
                        call -> call.queueUrl(url).attributeNames(QueueAttributeName.ALL));
        System.out.println(
                "left "
                        + told.attributes().get(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES));
        long listed =
                sqs.listQueuesPaginator(call -> call.queueNamePrefix("java").maxResults(1))
                        .queueUrls()
                        .stream()
                        .count();
        System.out.println("listed " + listed);
        sqs.purgeQueue(call -> call.queueUrl(url));
        sqs.deleteQueue(call -> call.queueUrl(url));
        try {
            sqs.getQueueUrl(call -> call.queueName("java"));
        } catch (QueueDoesNotExistException error) {
            System.out.println("refused " + error.awsErrorDetails().errorCode());
        }
        try {
            sqs.deleteMessage(call -> call.queueUrl(make("java-2", Map.of())).receiptHandle("x"));
        } catch (ReceiptHandleIsInvalidException error) {
            System.out.println("refused " + error.statusCode());
        }
    }

    private static void order() {
        String url =
                make(
                        "java.fifo",
                        Map.of(
                                QueueAttributeName.FIFO_QUEUE,
                                "true",
                                QueueAttributeName.CONTENT_BASED_DEDUPLICATION,
                                "true"));
        for (String body : List.of("1", "2", "2", "3")) {
            sqs.sendMessage(call -> call.queueUrl(url).messageBody(body).messageGroupId("g"));
        }
        var bodies = new ArrayList<String>();
        for (Message one : takeAll(url, 3)) {
            bodies.add(one.body());
        }
        System.out.println("order " + bodies);
    }

    /** The SDK gathers calls of their own into batches, and polls ahead. */
    private static void batches(SqsAsyncClient client) {
        String url = make("java-batches", Map.of());
        try (SqsAsyncBatchManager manager = client.batchManager()) {
            var sending = new ArrayList<java.util.concurrent.CompletableFuture<?>>();
            for (int number = 0; number < 25; number++) {
                String body = "" + number;
                sending.add(manager.sendMessage(call -> call.queueUrl(url).messageBody(body)));
            }
            sending.forEach(java.util.concurrent.CompletableFuture::join);
            var seen = new TreeSet<String>();
            while (seen.size() < 25) {
                for (Message one :
                        manager.receiveMessage(call -> call.queueUrl(url)).join().messages()) {
                    seen.add(one.body());
                    manager.deleteMessage(
                                    call -> call.queueUrl(url).receiptHandle(one.receiptHandle()))
                            .join();
                }
            }
            System.out.println("batches " + seen.size());
        }
    }

    private static void topics(SnsClient sns) {
        String topic = sns.createTopic(call -> call.name("java")).topicArn();
        String url = make("java-subscriber", Map.of());
        String queue =
                sqs.getQueueAttributes(
                                call ->
                                        call.queueUrl(url)
                                                .attributeNames(QueueAttributeName.QUEUE_ARN))
                        .attributes()
                        .get(QueueAttributeName.QUEUE_ARN);
        sns.subscribe(
                call ->
                        call.topicArn(topic)
                                .protocol("sqs")
                                .endpoint(queue)
                                .attributes(Map.of("RawMessageDelivery", "true")));
        sns.publish(call -> call.topicArn(topic).message("news é"));
        System.out.println("published " + takeAll(url, 1).get(0).body());
        sns.deleteTopic(call -> call.topicArn(topic));
    }
}
