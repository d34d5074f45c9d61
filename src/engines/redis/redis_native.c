/* SPDX-License-Identifier: MIT
 *
 * redis_native.c: Holdfast's own dialect: what runs inside the server, one script per operation, each one atomic step.
 *
 *   lock    hash   o owner "client.serial"   t last token   u held until   i since and "host pid note"   a arrivals
 *                  n the last renewal that others may be behind   x marks: owners that nothing is granted to any more
 *   queue   zset   "owner host pid note" by order of arrival; and a half: who is to get RESERVED tokens
 *
 * No `o`, or a `u` that has passed: free. The hash stays for a day after its last use and keeps the token; `a` is there
 * while there may be a queue. All times are the server's, in microseconds; `i` starts with seconds and microseconds.
 *
 * The free path is kept short, as every call, number and table in Lua costs about half a microsecond: three calls to
 * take a lock, two to release it. Under maxmemory a script's first write decides whether it is refused: release and
 * renewal begin with one that never is (HDEL, ZPOPMIN, PEXPIRE).
 */
#include "redis.h"
#include "redis_lua.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* In a cluster with sharded publishing a waiter is told on a channel in the lock's slot. */
#define TO_SLOT "'spublish', KEYS[1] .. ':c:' .. client"

/* For a waiter whose client is going to pass the lock on to others of its own; `t` is the last of them. */
#define RESERVED "64"
static_assert(HFI_TOKENS_MOST == 64, "RESERVED is the same number");

/* clang-format off */

/* The hash is to stay for a day after its last use, but to say so at every use would cost a call: the first grant in
 * each hour of the clock does, and every one while the clock is behind the last token. */
#define NEW_HOUR "(last < now - now % 3600000000 or last >= now)"

/* Hands the lock to the first waiter who is there to hear it: a PUBLISH that reaches nobody means a dead one. Expects
 * last, the last token; me, who asks; and silent, a client that let a gift lapse: it is passed over with all its
 * waiters, who line up anew when it wakes. Sets heir; without one the lock is free. A PUBLISH that the ACL refuses must
 * not leave the lock held by nobody: it is freed, and the waiters come for it by themselves. The message is for those
 * who listen here and are counted: one who listens to a replica, which was the master before, gets another one, too old
 * to be believed, and asks. */
#define HAND_OVER(CHANNEL)                                                                                             \
    "local heir\n"                                                                                                     \
    "local token = string.format('%.0f', last < now and now or last + 1)\n"                                            \
    "while not heir do\n"                                                                                              \
    "  local popped = redis.call('zpopmin', KEYS[2])\n"                                                                \
    "  local first = popped[1]\n"                                                                                      \
    "  if not first then redis.call('hdel', KEYS[1], 'o', 'a') break end\n"                                            \
    "  local more = popped[2] % 1 > 0 and last < now and ' " RESERVED "' or ''\n"                                      \
    "  local space = string.find(first, ' ', 18, true)\n"                                                              \
    "  local owner = string.sub(first, 1, space - 1)\n"                                                                \
    "  local client = string.sub(owner, 1, 16)\n"                                                                      \
    "  local heard = 0\n"                                                                                              \
    "  if owner == me then heard = 1\n"                                                                                \
    "  elseif client ~= silent then\n"                                                                                 \
    "    redis.set_repl(redis.REPL_NONE)\n"                                                                            \
    "    heard = redis.pcall(" CHANNEL ",\n"                                                                           \
    "      string.sub(owner, 18) .. ' ' .. token .. ' ' .. c[1] .. ' ' .. c[2] .. more)\n"                             \
    "    redis.set_repl(redis.REPL_ALL)\n"                                                                             \
    "    if heard == 0 then redis.pcall(" CHANNEL ", string.sub(owner, 18) .. ' ' .. token .. ' 1 0') end\n"           \
    "    if type(heard) == 'table' then\n"                                                                             \
    "      redis.call('hdel', KEYS[1], 'o')\n"                                                                         \
    "      redis.call('zadd', KEYS[2], 0, first)\n"                                                                    \
    "      return heard\n"                                                                                             \
    "    end\n"                                                                                                        \
    "  end\n"                                                                                                          \
    "  if heard > 0 then\n"                                                                                            \
    "    if more ~= '' then token = string.format('%.0f', token + " RESERVED " - 1) end\n"                             \
    "    redis.call('hset', KEYS[1], 'o', owner, 't', token, 'u', now + 2000000,\n"                                    \
    "      'i', c[1] .. ' ' .. c[2] .. string.sub(first, space))\n"                                                    \
    "    if " NEW_HOUR " then redis.call('pexpire', KEYS[1], 86402000) end\n"                                          \
    "    heir = owner\n"                                                                                               \
    "  end\n"                                                                                                          \
    "end\n"

/* ARGV owner, "host pid note", ttl, 1 to line up, and how many tokens more than one to reserve, unless that is none.
 * Held now: the first token; or less than 0, minus the token, if it has no more than that: they are reserved only while
 * the last one is before the clock. Else they could run away from it, and would begin anew with smaller ones once the
 * server has forgotten the last. Not held: { -1, now, left ms, place, holder }. What comes after a renewal by the same
 * owner is late, and changes nothing. */
#define ACQUIRE(CHANNEL)                                                                                               \
    "local h = redis.call('hmget', KEYS[1], 'o', 'a', 't', 'x')\n" CLOCK                                               \
    "local last = tonumber(h[3]) or 0\n"                                                                               \
    "local more = last < now and ARGV[5]\n"                                                                            \
    REFUSE_MARKED("h[4]")                                                                                              \
    "if not h[1] and not h[2] then\n"                                                                                  \
    "  local token = last < now and now or last + 1\n"                                                                 \
    "  redis.call('hset', KEYS[1], 'o', ARGV[1], 't', more and token + more or token,\n"                               \
    "    'u', now + ARGV[3] * 1000,\n"                                                                                 \
    "    'i', c[1] .. ' ' .. c[2] .. ' ' .. ARGV[2])\n"                                                                \
    "  if " NEW_HOUR " or ARGV[3] - 3600000 > 0 then redis.call('pexpire', KEYS[1], ARGV[3] + 86400000) end\n"         \
    "  if stale then redis.call('hdel', KEYS[1], 'x') end\n"                                                           \
    "  return (more or not ARGV[5]) and token or -token\n"                                                             \
    "end\n"                                                                                                            \
    "local me = ARGV[1]\n"                                                                                             \
    "local state = redis.call('hmget', KEYS[1], 'u', 'i', 'n')\n"                                                      \
    "if not h[1] or state[1] - now <= 0 then\n"                                                                        \
    "  local silent\n"                                                                                                 \
    "  if h[1] then\n"                                                                                                 \
    "    local s, us = string.match(state[2], '^(%d+) (%d+)')\n"                                                       \
    "    if state[1] - s * 1000000 - us == 2000000 then silent = string.sub(h[1], 1, 16) end\n"                        \
    "  end\n"                                                                                                          \
    HAND_OVER(CHANNEL)                                                                                                 \
    "  h[1] = heir or me\n"                                                                                            \
    "  h[3] = token\n"                                                                                                 \
    "  state = { now + 2000000, heir and redis.call('hget', KEYS[1], 'i') }\n"                                         \
    "end\n"                                                                                                            \
    "if h[1] == me then\n"                                                                                             \
    "  if state[3] and " HOLDER_OF("state[3]") " == me then return tonumber(h[3]) end\n"                               \
    "  local token = more and h[3] + 1 or tonumber(h[3])\n"                                                            \
    "  redis.call('hset', KEYS[1], 'o', me, 't', token + (more or 0), 'u', now + ARGV[3] * 1000,\n"                    \
    "    'i', c[1] .. ' ' .. c[2] .. ' ' .. ARGV[2])\n"                                                                \
    "  redis.call('pexpire', KEYS[1], ARGV[3] + 86400000)\n"                                                           \
    "  redis.call('zrem', KEYS[2], me .. ' ' .. ARGV[2])\n"                                                            \
    "  return (more or not ARGV[5]) and token or -token\n"                                                             \
    "end\n"                                                                                                            \
    "local place = -1\n"                                                                                               \
    "if ARGV[4] == '1' then\n"                                                                                         \
    "  local member = me .. ' ' .. ARGV[2]\n"                                                                          \
    "  place = redis.call('zrank', KEYS[2], member)\n"                                                                 \
    "  if not place then\n"                                                                                            \
    "    local arrival = redis.call('hincrby', KEYS[1], 'a', 1)\n"                                                     \
    "    redis.call('zadd', KEYS[2], ARGV[5] and arrival + 0.5 or arrival, member)\n"                                  \
    "    place = redis.call('zcard', KEYS[2]) - 1\n"                                                                   \
    "  end\n"                                                                                                          \
    "  redis.call('pexpire', KEYS[2], 86400000)\n"                                                                     \
    "end\n"                                                                                                            \
    "return { -1, now, math.ceil((state[1] - now) / 1000), place, state[2] }\n"

/* ARGV owner, "host pid note", and 1 to leave a mark. 1: was held, or waited for. 0: neither. */
#define RELEASE(CHANNEL)                                                                                               \
    "local h = redis.call('hmget', KEYS[1], 'o', 'a', 't')\n"                                                          \
    "if ARGV[3] then\n"                                                                                                \
    "  local place = redis.call('zrem', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])\n"                                         \
    "  local old = redis.call('hmget', KEYS[1], 'x', 'u')\n" CLOCK                                                     \
    ADD_MARK("(old[1] or '')")                                                                                         \
    "  redis.call('hset', KEYS[1], 'x', marks)\n"                                                                      \
    "  redis.call('pexpire', KEYS[1], string.format('%.0f', math.max(0, (old[2] or 0) - now) / 1000 + 86400000))\n"    \
    "  if h[1] ~= ARGV[1] then return place end\n"                                                                     \
    "end\n"                                                                                                            \
    "if h[1] ~= ARGV[1] then return redis.call('zrem', KEYS[2], ARGV[1] .. ' ' .. ARGV[2]) end\n"                      \
    "if not h[2] then return redis.call('hdel', KEYS[1], 'o') end\n"                                                   \
    "local last = tonumber(h[3])\n"                                                                                    \
    "local me, silent\n" CLOCK HAND_OVER(CHANNEL)                                                                      \
    "return 1\n"

/* KEYS locks, ARGV owner and ttl of each. One 1 (renewed) or 0 (not its owner's any more) for each. */
static const char renew[] =
    CLOCK LATER
    "local answer = {}\n"
    "for i, key in ipairs(KEYS) do\n"
    "  local h = redis.call('hmget', key, 'o', 'u', 'n')\n"
    "  local me = ARGV[2 * i - 1]\n"
    "  local owner = " HOLDER_OF("me") "\n"
    "  answer[i] = 0\n"
    "  if h[1] == owner and h[2] - now > 0 and not (h[3] and later(h[3], me)) then\n"
    "    redis.call('pexpire', key, ARGV[2 * i] + 86400000)\n"
    "    redis.call('hset', key, 'u', now + ARGV[2 * i] * 1000)\n"
    "    if me ~= owner then redis.call('hset', key, 'n', me) end\n"
    "    answer[i] = 1\n"
    "  end\n"
    "end\n"
    "return answer\n";

#define EVICT(CHANNEL)                                                                                                 \
    "local h = redis.call('hmget', KEYS[1], 'o', 't')\n"                                                               \
    "if not h[1] then return 0 end\n"                                                                                  \
    ONLY_WHOM_WAS_SEEN("h[1]")                                                                                         \
    "local last = tonumber(h[2])\n"                                                                                    \
    "local me, silent\n" CLOCK HAND_OVER(CHANNEL) TELL_HOLDER("h[1]")                                                  \
    "return 1\n"

#define HELD                                                                                                           \
    "local h = redis.call('hmget', KEYS[1], 'o', 't')\n"                                                               \
    "if h[1] == me then token = h[2] end\n"

/* Held: { 1, token, left ms, held for ms, "host pid note", waiters… }. Else, and for hashes of others: { 0 }. */
static const char look[] =
    "local h = redis.call('hmget', KEYS[1], 'o', 'u', 't', 'i')\n" CLOCK
    "local left = (tonumber(h[2]) or 0) - now\n"
    "local s, us, info = string.match(h[4] or '', '^(%d+) (%d+) (.*)$')\n"
    "if not h[1] or left <= 0 or not s then return { 0 } end\n"
    "local answer = { 1, tonumber(h[3]) or 0, math.ceil(left / 1000), (now - s * 1000000 - us) / 1000, info }\n"
    "for i, member in ipairs(redis.call('zrange', KEYS[2], 0, -1)) do answer[5 + i] = member end\n"
    "return answer\n";
/* clang-format on */

static size_t keys_of(redis_keys keys, const struct redis_store *store, const char *name, struct hfi_owner owner)
{
    (void)owner;
    /* The user's own {tag} is kept. A name that begins with "}" would leave the tag empty, and its keys in different
     * slots. The forms stay apart by how they end. */
    const char *const form = hfi_redis_has_tag(name) ? "%s%s:" : *name == '}' ? "%s{-}%s;" : "%s{%s}";
    snprintf(keys[0], sizeof keys[0], form, store->config.prefix, name);
    snprintf(keys[1], sizeof keys[1], "%.*s:q", HFI_REDIS_KEY_MAX - 3, keys[0]);
    return 2;
}

void hfi_redis_owner(char out[HFI_REDIS_OWNER_MAX], struct hfi_owner owner)
{
    snprintf(out, HFI_REDIS_OWNER_MAX, "%016llx.%llu", (unsigned long long)owner.client,
             (unsigned long long)owner.serial);
}

static void channel_of(char out[HFI_REDIS_KEY_MAX], const redis_keys keys, uint64_t client)
{
    snprintf(out, HFI_REDIS_KEY_MAX, "%.*s:c:%016llx", HFI_REDIS_KEY_MAX - 24, keys[0], (unsigned long long)client);
}

static bool name_of(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key)
{
    const size_t prefix = strlen(store->config.prefix);
    const size_t length = strlen(key);
    redis_keys again;
    if (length <= prefix + 1 || length >= HFI_REDIS_KEY_MAX || strncmp(key, store->config.prefix, prefix) != 0)
        return false;
    const bool braces = key[prefix] == '{' && key[length - 1] == '}';
    const size_t from = prefix + (key[length - 1] == ';' ? 3 : braces ? 1 : 0);
    if (from >= length)
        return false;
    memcpy(out, key + from, length - 1 - from);
    out[length - 1 - from] = 0;
    keys_of(again, store, out, (struct hfi_owner){ 0, 0 });
    return strcmp(again[0], key) == 0;
}

#define SCRIPTS(CHANNEL)                                                                                               \
    {                                                                                                                  \
        ACQUIRE(CHANNEL), RELEASE(CHANNEL), renew, EVICT(CHANNEL), look, NULL, UNLESS_DONE ACQUIRE(CHANNEL),           \
            AND_RECORD_DONE(HELD, RELEASE(CHANNEL))                                                                    \
    }

/* Of the server's module holdfast.so, where it is loaded: see module/. Each takes the words of its script, and answers
 * as that does. */
#define COMMANDS(ACQUIRE_NAME, RELEASE_NAME)                                                                           \
    {                                                                                                                  \
        [REDIS_ACQUIRE] = (ACQUIRE_NAME), [REDIS_RELEASE] = (RELEASE_NAME), [REDIS_RENEW] = "HF.RENEW",                \
        [REDIS_LOOK] = "HF.LOOK", [REDIS_GUARD] = "HF.GUARD"                                                           \
    }

static const char *const commands[REDIS_SCRIPTS] = COMMANDS("HF.ACQUIRE", "HF.RELEASE");
static const char *const sharded_commands[REDIS_SCRIPTS] = COMMANDS("HF.SACQUIRE", "HF.SRELEASE");

const struct redis_dialect hfi_redis_native = {
    .name = "native",
    .prefix = "hf:",
    .caps = HF_CAP_FAIR | HF_CAP_WAKE_ONE,
    .gifts = true,
    .reserves = true,
    .scripts = SCRIPTS(TO_CLIENT),
    .sharded_scripts = SCRIPTS(TO_SLOT),
    .commands = commands,
    .sharded_commands = sharded_commands,
    .keys = keys_of,
    .owner = hfi_redis_owner,
    .channel = channel_of,
    .key_type = "hash",
    .name_of = name_of,
};
