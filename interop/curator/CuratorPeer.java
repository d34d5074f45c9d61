// SPDX-License-Identifier: MIT
//
// CuratorPeer: InterProcessMutex of Curator, played by interop/run through one line at a time (see interop/README.md).
//
//     CuratorPeer SESSION_MS PREFIX HOST:PORT
//
// All of it runs on the main thread, because Curator knows its holders by thread.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.data.Stat;

public final class CuratorPeer {
    private static final long PATIENCE_MS = 20000;

    private final CuratorFramework client;
    private final String prefix;
    private final Map<String, InterProcessMutex> locks = new HashMap<>();

    private CuratorPeer(CuratorFramework client, String prefix) {
        this.client = client;
        this.prefix = prefix;
    }

    public static void main(String[] arguments) throws Exception {
        int sessionMs = Integer.parseInt(arguments[0]);
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(arguments[2], sessionMs, sessionMs, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        System.out.println("ready");
        new CuratorPeer(client, arguments[1]).serve();
        client.close();
    }

    private void serve() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null && !line.equals("quit"); line = input.readLine()) {
            try {
                System.out.println(line.startsWith("timed ") ? timed(line.substring(6)) : obey(line.split(" ")));
            } catch (Exception error) {
                error.printStackTrace();
                System.out.println("error " + error.toString().replace('\n', ' '));
            }
        }
    }

    // Adds to the answer when the call began and when it was back, on the clock that all processes of a machine share.
    private String timed(String line) throws Exception {
        long called = System.nanoTime();
        String answer = obey(line.split(" "));
        return answer + " " + called + " " + System.nanoTime();
    }

    private String obey(String[] words) throws Exception {
        InterProcessMutex lock =
            locks.computeIfAbsent(words[1], name -> new InterProcessMutex(client, prefix + name));
        switch (words[0]) {
            case "try":
                return take(lock, 0);
            case "acquire":
            case "keep":
                return take(lock, Long.parseLong(words[3]));
            case "release":
                return release(lock);
            case "token":
                return token(prefix + words[1]);
            case "pairs":
                return pairs(lock, Integer.parseInt(words[2]));
            default:
                return "error unknown command " + words[0];
        }
    }

    private static String take(InterProcessMutex lock, long waitMs) throws Exception {
        return lock.acquire(waitMs, TimeUnit.MILLISECONDS) ? "held" : "busy";
    }

    // Curator does not say whether its node was still there, only whether this thread once took the lock.
    private static String release(InterProcessMutex lock) throws Exception {
        try {
            lock.release();
            return "released";
        } catch (IllegalMonitorStateException notMine) {
            return "refused";
        }
    }

    // The transaction that made the node. Curator keeps the node's name to itself, but its session owns it.
    private String token(String path) throws Exception {
        long session = client.getZookeeperClient().getZooKeeper().getSessionId();
        for (String node : client.getChildren().forPath(path)) {
            Stat stat = client.checkExists().forPath(path + "/" + node);
            if (stat != null && stat.getEphemeralOwner() == session) {
                return Long.toString(stat.getCzxid());
            }
        }
        return "error no node of this session";
    }

    private static String pairs(InterProcessMutex lock, int count) throws Exception {
        StringBuilder times = new StringBuilder();
        for (int i = 0; i < count; i++) {
            long start = System.nanoTime();
            if (!lock.acquire(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
                return "error not free";
            }
            lock.release();
            times.append(System.nanoTime() - start).append(' ');
        }
        return times.toString().trim();
    }
}
