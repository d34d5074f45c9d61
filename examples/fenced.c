/* SPDX-License-Identifier: MIT
 *
 * fenced.c: workers on several machines, and a register in Redis that refuses the one that was paused for too long.
 *
 *     cc fenced.c -lholdfast -lhiredis -o fenced && ./fenced redis://HOST:PORT
 *     (or redis+unix:///SOCKET)
 *
 * Each worker is a process, as it would be on a machine of its own: it shares nothing with the others but the server.
 * It takes the lock, reads the register, adds one, and writes back. Then one worker is stopped between reading and
 * writing, for longer than its lock lives. Somebody else is granted the lock, rightly, and writes. When the stopped one
 * wakes up it knows nothing of that and writes what it had in mind. No lock can prevent this. The fencing token can: it
 * goes along with every write, and the register takes no smaller one than the largest it has seen. Exits 0 if no
 * increment was lost and the late write was refused.
 */
#include <hiredis/hiredis.h>
#include <holdfast.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 4
#define ROUNDS 5
#define LOCK "fenced-example"
#define REGISTER "fenced-example-register" /* a hash: value, and token of who wrote it */

/* Compare and write in one step; two steps would leave a gap for somebody to be paused in. Equal is allowed: a holder
 * may write more than once. Redis has numbers of 53 bits here, and tokens of this engine stay below that until 2255. */
static const char guarded_write[] = "local seen = redis.call('HGET', KEYS[1], 'token')\n"
                                    "if seen and tonumber(seen) > tonumber(ARGV[1]) then return 0 end\n"
                                    "redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])\n"
                                    "return 1\n";

/* --- the register --- */

static redisContext *connect_to(const char *url)
{
    char host[256];
    int port;

    if (strncmp(url, "redis+unix://", 13) == 0)
        return redisConnectUnix(url + 13);
    if (sscanf(url, "redis://%255[^:/]:%d", host, &port) == 2)
        return redisConnect(host, port);
    return NULL;
}

static bool read_register(redisContext *redis, long long *value)
{
    redisReply *reply = redisCommand(redis, "HGET %s value", REGISTER);
    bool done = reply && (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_NIL);

    if (done)
        *value = reply->type == REDIS_REPLY_STRING ? strtoll(reply->str, NULL, 10) : 0;
    freeReplyObject(reply);
    return done;
}

enum written { WRITTEN, REFUSED, FAILED };

static enum written write_register(redisContext *redis, uint64_t token, long long value)
{
    redisReply *reply =
        redisCommand(redis, "EVAL %s 1 %s %llu %lld", guarded_write, REGISTER, (unsigned long long)token, value);
    enum written result = !reply || reply->type != REDIS_REPLY_INTEGER ? FAILED : reply->integer ? WRITTEN : REFUSED;

    freeReplyObject(reply);
    return result;
}

/* --- one worker; every process has connections of its own --- */

struct worker {
    hf_client *client;
    redisContext *redis;
};

static bool worker_open(struct worker *worker, const char *url)
{
    hf_error err;

    worker->redis = connect_to(url);
    if (!worker->redis || worker->redis->err) {
        fprintf(stderr, "fenced: cannot reach %s\n", url);
        return false;
    }
    if (hf_open(&worker->client, url, NULL, &err) != HF_OK) {
        fprintf(stderr, "fenced: %s\n", err.message);
        return false;
    }
    return true;
}

static void worker_close(struct worker *worker)
{
    hf_close(worker->client);
    redisFree(worker->redis);
}

/* Takes the lock, adds one to the register, gives the lock back. `pause`: stops in the middle, as a machine does that
 * swaps, sleeps or is moved. */
static enum written add_one(struct worker *worker, bool pause)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock;
    hf_error err;
    long long value = 0;
    enum written result = FAILED;

    options.wait_ms = 20000;
    options.ttl_ms = pause ? 500 : 0; /* the pause outlives it; 0 is the default, 30 s */
    options.note = "adding one";
    if (hf_acquire(&lock, worker->client, LOCK, &options, &err) != HF_OK) {
        fprintf(stderr, "fenced: %s\n", err.message);
        return FAILED;
    }
    if (read_register(worker->redis, &value)) {
        printf("worker %ld  token %" PRIu64 "  read %lld\n", (long)getpid(), hf_token(lock), value);
        fflush(stdout);
        if (pause)
            raise(SIGSTOP); /* whole process, the library's thread included: nobody renews, nobody can be told */
        result = write_register(worker->redis, hf_token(lock), value + 1);
    }
    /* HF_LOST is what the paused one must hear. A real program looks at hf_remaining_ms() before each step too, but it
     * can be paused after that look as well. */
    if ((hf_release(lock, NULL) == HF_LOST) != pause)
        result = FAILED;
    return result;
}

static int work(const char *url, bool pause)
{
    struct worker worker;
    int result = 0;

    if (!worker_open(&worker, url))
        return 1;
    for (int i = 0; i < (pause ? 1 : ROUNDS); i++)
        result |= add_one(&worker, pause) != (pause ? REFUSED : WRITTEN);
    worker_close(&worker);
    return result;
}

static pid_t start(const char *url, bool pause)
{
    pid_t pid = fork();

    if (pid == 0)
        exit(work(url, pause));
    return pid;
}

static bool ended_well(pid_t pid)
{
    int status;

    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* --- the two acts --- */

static bool crowd(const char *url)
{
    pid_t workers[WORKERS];
    bool right = true;

    printf("%d workers add one, %d times each:\n", WORKERS, ROUNDS);
    fflush(stdout);
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start(url, false);
    for (int i = 0; i < WORKERS; i++)
        right &= ended_well(workers[i]);
    return right;
}

static bool paused(const char *url, struct worker *successor)
{
    int status;
    pid_t pid;
    bool right;

    printf("a worker is stopped between reading and writing:\n");
    fflush(stdout);
    pid = start(url, true);
    if (pid < 0 || waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
        return false;
    right = add_one(successor, false) == WRITTEN; /* waits until the server has ended the lock of the stopped one */
    printf("its successor has written; now it wakes up and writes too\n");
    kill(pid, SIGCONT);
    if (ended_well(pid))
        printf("the register refused it\n");
    else
        right = false;
    return right;
}

int main(int argc, char **argv)
{
    struct worker observer;
    long long value = -1;
    bool right;

    if (argc != 2) {
        fprintf(stderr, "usage: fenced redis://HOST:PORT | redis+unix:///SOCKET\n");
        return 64;
    }
    right = crowd(argv[1]);
    if (!worker_open(&observer, argv[1]))
        return 1;
    right &= paused(argv[1], &observer);
    right &= read_register(observer.redis, &value);
    printf("the register says %lld, and should say %d\n", value, WORKERS * ROUNDS + 1);
    freeReplyObject(redisCommand(observer.redis, "DEL %s", REGISTER));
    worker_close(&observer);
    return right && value == WORKERS * ROUNDS + 1 ? 0 : 1;
}
