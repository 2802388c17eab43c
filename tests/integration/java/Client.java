import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.SdkField;
import software.amazon.awssdk.core.SdkPojo;
import software.amazon.awssdk.core.traits.ListTrait;
import software.amazon.awssdk.core.traits.MapTrait;
import software.amazon.awssdk.protocols.jsoncore.JsonNode;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sns.SnsClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.utils.builder.SdkBuilder;

/** The AWS SDK for Java as a client of `every_action`: `java Client URL REGION`. */
public final class Client {
    public static void main(String[] words) throws Exception {
        URI url = URI.create(words[0]);
        Region region = Region.of(words[1]);
        Map<String, Object> clients =
                Map.of(
                        "sqs", SqsClient.builder().endpointOverride(url).region(region).build(),
                        "sns", SnsClient.builder().endpointOverride(url).region(region).build());
        var lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, JsonNode> asked = JsonNode.parser().parse(line).asObject();
            String service = asked.get("service").asString();
            String action = asked.get("action").asString();
            out.println(answer(clients.get(service), service, action, asked.get("input")));
        }
        System.exit(0);
    }

    private static String answer(Object client, String service, String action, JsonNode input)
            throws Exception {
        Class<?> kind =
                Class.forName(
                        "software.amazon.awssdk.services." + service + ".model." + action + "Request");
        SdkPojo builder = (SdkPojo) kind.getMethod("builder").invoke(null);
        Object request = build(builder, input);
        String name = Character.toLowerCase(action.charAt(0)) + action.substring(1);
        Class<?> face = client instanceof SqsClient ? SqsClient.class : SnsClient.class;
        try {
            Object told = face.getMethod(name, kind).invoke(client, request);
            return "{\"told\":" + written(told) + "}";
        } catch (java.lang.reflect.InvocationTargetException error) {
            var refused = (AwsServiceException) error.getCause();
            return "{\"refused\":" + quoted(refused.awsErrorDetails().errorCode()) + "}";
        }
    }

    /** What a builder makes of an object, whose fields are named as on the wire. */
    private static Object build(SdkPojo builder, JsonNode input) {
        Map<String, JsonNode> given = new LinkedHashMap<>(input.asObject());
        for (SdkField<?> field : builder.sdkFields()) {
            JsonNode value = given.remove(field.locationName());
            if (value != null) {
                field.set(builder, read(field, value));
            }
        }
        if (!given.isEmpty()) {
            throw new IllegalArgumentException("not known: " + given.keySet());
        }
        return ((SdkBuilder<?, ?>) builder).build();
    }

    private static Object read(SdkField<?> field, JsonNode value) {
        if (value.isArray()) {
            SdkField<?> member = field.getTrait(ListTrait.class).memberFieldInfo();
            List<Object> found = new ArrayList<>();
            value.asArray().forEach(one -> found.add(read(member, one)));
            return found;
        }
        if (value.isObject()) {
            var map = field.getOptionalTrait(MapTrait.class);
            if (map.isEmpty()) {
                return build(field.constructor().get(), value);
            }
            Map<String, Object> found = new LinkedHashMap<>();
            SdkField<?> member = map.get().valueFieldInfo();
            value.asObject().forEach((name, one) -> found.put(name, read(member, one)));
            return found;
        }
        return value.isNumber() ? (Object) Integer.valueOf(value.asNumber()) : value.asString();
    }

    private static String written(Object value) {
        if (value instanceof SdkPojo pojo) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (SdkField<?> field : pojo.sdkFields()) {
                fields.put(field.locationName(), field.getValueOrDefault(pojo));
            }
            return written(fields);
        }
        if (value instanceof Map<?, ?> map) {
            List<String> parts = new ArrayList<>();
            map.forEach(
                    (name, one) -> {
                        if (one != null) {
                            parts.add(quoted(name.toString()) + ":" + written(one));
                        }
                    });
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof List<?> list) {
            return "[" + String.join(",", list.stream().map(Client::written).toList()) + "]";
        }
        boolean isPlain = value instanceof Number || value instanceof Boolean;
        return isPlain ? value.toString() : quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder found = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one < ' ' || one == '"' || one == '\\') {
                found.append(String.format("\\u%04x", (int) one));
            } else {
                found.append(one);
            }
        }
        return found.append('"').toString();
    }
}
