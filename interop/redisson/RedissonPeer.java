// SPDX-License-Identifier: MIT
//
// RedissonPeer: RLock of Redisson, played by interop/run through one line at a time (see interop/README.md).
//
//     RedissonPeer WATCHDOG_MS single|cluster HOST:PORT...
//
// All of it runs on the main thread, because Redisson knows its holders by thread.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public final class RedissonPeer {
    // Redisson's own sign for "no lease given": the watchdog renews.
    private static final long WATCHDOG = -1;

    private final RedissonClient client;

    private RedissonPeer(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        RedissonClient client = Redisson.create(configure(arguments));
        say("ready");
        new RedissonPeer(client).serve();
        // Its threads would keep the process alive; whoever sent "quit" does not care for an orderly end.
        System.exit(0);
    }

    private static Config configure(String[] arguments) {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(arguments[0]));
        config.setThreads(2).setNettyThreads(2);
        if (arguments[1].equals("cluster")) {
            for (int i = 2; i < arguments.length; i++) {
                config.useClusterServers().addNodeAddress("redis://" + arguments[i]);
            }
            config.useClusterServers().setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(4)
                .setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(4)
                .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(4);
        } else {
            config.useSingleServer().setAddress("redis://" + arguments[2]).setConnectionMinimumIdleSize(1)
                .setConnectionPoolSize(4).setSubscriptionConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionPoolSize(4);
        }
        return config;
    }

    private static void say(String answer) {
        System.out.println(answer);
        System.out.flush();
    }

    private void serve() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null && !line.equals("quit"); line = input.readLine()) {
            try {
                say(obey(line.split(" ")));
            } catch (Exception error) {
                error.printStackTrace();
                say("error " + error.toString().replace('\n', ' '));
            }
        }
    }

    private String obey(String[] words) throws InterruptedException {
        RLock lock = client.getLock(words[1]);
        switch (words[0]) {
            case "try":
                return take(lock, 0, Long.parseLong(words[2]));
            case "acquire":
                return take(lock, Long.parseLong(words[3]), Long.parseLong(words[2]));
            case "keep":
                return take(lock, Long.parseLong(words[3]), WATCHDOG);
            case "release":
            case "steal":
                try {
                    lock.unlock();
                    return "released";
                } catch (IllegalMonitorStateException notMine) {
                    return "refused";
                }
            default:
                return "error unknown command " + words[0];
        }
    }

    private static String take(RLock lock, long waitMs, long leaseMs) throws InterruptedException {
        return lock.tryLock(waitMs, leaseMs, TimeUnit.MILLISECONDS) ? "held" : "busy";
    }
}
