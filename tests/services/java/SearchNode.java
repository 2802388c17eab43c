import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** One node of OpenSearch without its distribution: SearchNode FOLDER HTTP-PORT TRANSPORT-PORT. */
public final class SearchNode extends Node {
    private SearchNode(Environment environment) {
        super(environment, List.of(Netty4Plugin.class), false);
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings =
                Settings.builder()
                        .put("path.home", arguments[0])
                        .put("node.name", "test")
                        .put("network.host", "127.0.0.1")
                        .put("http.port", arguments[1])
                        .put("transport.port", arguments[2])
                        .put("discovery.type", "single-node")
                        .put("transport.type", "netty4")
                        .put("http.type", "netty4")
                        .put("cluster.routing.allocation.disk.threshold_enabled", false)
                        .build();
        Environment environment =
                InternalSettingsPreparer.prepareEnvironment(
                        settings, Map.of(), Path.of(arguments[0], "config"), () -> "test");
        new SearchNode(environment).start();
        new CountDownLatch(1).await();
    }
}
