/* SPDX-License-Identifier: MIT
 *
 * redis_redisson.c: the dialect `redisson`: Redisson's RLock (3.24 and newer), so that Java programs and others share a
 * lock, wake each other and outlive each other.
 *
 *   NAME                                       hash     "uuid:number" of the holder = how often it holds it, for a time
 *                                                       ("uuid:number+N" after a renewal that others may be behind)
 *   redisson_lock__channel:{NAME}              channel  "0": it was released
 *   redisson_unlock_latch:{NAME}:<32 digits>   string   "1" after a release, in case that it is sent again
 *   hf:{NAME}:t                                string   "token owner s us host pid note" of the last grant by Holdfast;
 *                                                       on a second line the marks, as in `plain`
 *
 * One uuid per client, one number per hold, as Redisson has one per thread. A release wakes one waiter of every client,
 * which is Redisson's way. Redisson's tokens (RFencedLock) and ours do not know of each other.
 */
#include "redis.h"
#include "redis_lua.h"
#include <stdio.h>
#include <string.h>

/* clang-format off */
#define ACQUIRE                                                                                                        \
    "local me = ARGV[1]\n"                                                                                             \
    LAST_GRANT CLOCK REFUSE_MARKED("marks")                                                                            \
    "if stale then marks = '' end\n"                                                                                   \
    "if redis.call('exists', KEYS[1]) == 0 then\n"                                                                     \
    "  redis.call('hincrby', KEYS[1], me, 1)\n"                                                                        \
    "  redis.call('pexpire', KEYS[1], ARGV[3])\n"                                                                      \
    NEW_GRANT                                                                                                          \
    "  return token\n"                                                                                                 \
    "end\n"                                                                                                            \
    "if redis.call('hexists', KEYS[1], me) == 1 then\n"                                                                \
    "  redis.call('pexpire', KEYS[1], ARGV[3])\n"                                                                      \
    "  if owner == me then return last end\n"                                                                          \
    NEW_GRANT                                                                                                          \
    "  return token\n"                                                                                                 \
    "end\n"                                                                                                            \
    "local ours = owner == " HOLDER_OF("redis.call('hkeys', KEYS[1])[1]") "\n"                                         \
    "return { -1, now, redis.call('pttl', KEYS[1]), ARGV[4] == '1' and 0 or -1, ours and info or '' }\n"

/* DEL first, which is never refused for want of memory; Redisson's own release is. */
#define RELEASE(VERB)                                                                                                  \
    LEAVE_MARK                                                                                                         \
    "local done = redis.call('get', KEYS[4])\n"                                                                        \
    "if done then return tonumber(done) end\n"                                                                         \
    "if " HOLDER_OF("redis.pcall('hkeys', KEYS[1])[1] or ''") " ~= ARGV[1] then return 0 end\n"                        \
    "redis.call('del', KEYS[1])\n"                                                                                     \
    "redis.pcall('" VERB "', KEYS[2], '0')\n"                                                                          \
    "redis.call('set', KEYS[4], '1', 'px', 20000)\n"                                                                   \
    "return 1\n"

#define HELD                                                                                                           \
    LAST_GRANT                                                                                                         \
    "if " HOLDER_OF("redis.pcall('hkeys', KEYS[1])[1] or ''") " == me then\n"                                          \
    "  token = owner == me and string.format('%.0f', last) or '0'\n"                                                   \
    "end\n"

/* HKEYS fails on what is no lock, before it is deleted. */
#define EVICT(VERB)                                                                                                    \
    "local holders = redis.call('hkeys', KEYS[1])\n"                                                                   \
    "if not holders[1] then return 0 end\n"                                                                            \
    ONLY_WHOM_WAS_SEEN("(string.gsub(table.concat(holders, ' '), '%+%d+$', ''))")                                      \
    "redis.call('del', KEYS[1])\n"                                                                                     \
    TELL_HOLDER("holders[1]")                                                                                          \
    "redis.pcall('" VERB "', KEYS[2], '0')\n"                                                                          \
    "return 1\n"

#define RENEW                                                                                                          \
    LATER                                                                                                              \
    "local answer = {}\n"                                                                                              \
    "for i, key in ipairs(KEYS) do\n"                                                                                  \
    "  local me, field = ARGV[2 * i - 1], redis.pcall('hkeys', key)[1]\n"                                              \
    "  local anew = field and later(me, field)\n"                                                                      \
    "  if anew then\n"                                                                                                 \
    "    redis.call('del', key)\n"                                                                                     \
    "    redis.call('hincrby', key, me, 1)\n"                                                                          \
    "  end\n"                                                                                                          \
    "  answer[i] = (field == me or anew) and redis.call('pexpire', key, ARGV[2 * i]) or 0\n"                           \
    "end\n"                                                                                                            \
    "return answer\n"

/* A holder that is none of ours is shown by its field. */
#define LOOK                                                                                                           \
    "local left = redis.call('pttl', KEYS[1])\n"                                                                       \
    "if left == -2 then return { 0 } end\n"                                                                            \
    LAST_GRANT CLOCK                                                                                                   \
    "local s, us, who = string.match(info or '', '^(%d+) (%d+) (.*)$')\n"                                              \
    "local field = redis.call('hkeys', KEYS[1])[1] or ''\n"                                                            \
    "if s and " HOLDER_OF("field") " == owner then\n"                                                                  \
    "  return { 1, last, left, (now - s * 1000000 - us) / 1000, who }\n"                                               \
    "end\n"                                                                                                            \
    "return { 1, 0, left, -1, field }\n"
/* clang-format on */

/* As Redisson spells it: braces around the name, unless it has one already. */
static void prefixed(char out[HFI_REDIS_KEY_MAX], const char *prefix, const char *key)
{
    snprintf(out, HFI_REDIS_KEY_MAX, strchr(key, '{') ? "%s:%.*s" : "%s:{%.*s}", prefix, HFI_REDIS_KEY_MAX - 72, key);
}

__attribute__((nonnull)) static size_t keys_of(redis_keys keys, const struct redis_store *store, const char *name,
                                               struct hfi_owner owner)
{
    snprintf(keys[0], sizeof keys[0], "%s%s", store->config.prefix, name);
    prefixed(keys[1], "redisson_lock__channel", keys[0]);
    hfi_redis_companion(keys[2], keys[0], "t");
    prefixed(keys[3], "redisson_unlock_latch", keys[0]);
    const size_t used = strlen(keys[3]);
    snprintf(keys[3] + used, sizeof keys[3] - used, ":%016llx%016llx", (unsigned long long)owner.client,
             (unsigned long long)owner.serial);
    return 4;
}

/* A random UUID, version 4, made of the client's random number; each number another one. */
static void owner_of(char out[HFI_REDIS_OWNER_MAX], struct hfi_owner owner)
{
    const uint64_t more = owner.client * UINT64_C(0x9e3779b97f4a7c15);
    snprintf(out, HFI_REDIS_OWNER_MAX, "%08x-%04x-4%03x-8%03x-%06x%06x:%llu", (unsigned)(owner.client >> 32),
             (unsigned)(owner.client >> 16 & 0xffff), (unsigned)(owner.client >> 4 & 0xfff), (unsigned)(more >> 52),
             (unsigned)(more >> 28 & 0xffffff), (unsigned)(owner.client & 0xf) << 20 | (unsigned)(more >> 8 & 0xfffff),
             (unsigned long long)owner.serial);
}

static void channel_of(char out[HFI_REDIS_KEY_MAX], const redis_keys keys, uint64_t client)
{
    (void)client;
    memcpy(out, keys[1], HFI_REDIS_KEY_MAX);
}

#define SCRIPTS(VERB)                                                                                                  \
    {                                                                                                                  \
        ACQUIRE, RELEASE(VERB), RENEW, EVICT(VERB), LOOK, NULL, UNLESS_DONE ACQUIRE,                                   \
            AND_RECORD_DONE(HELD, RELEASE(VERB))                                                                       \
    }

const struct redis_dialect hfi_redis_redisson = {
    .name = "redisson",
    .prefix = "",
    .own_channels = true,
    .leaves_latch = true,
    .scripts = SCRIPTS("publish"),
    .sharded_scripts = SCRIPTS("spublish"),
    .keys = keys_of,
    .owner = owner_of,
    .channel = channel_of,
    .key_type = "string",
    .name_of = hfi_redis_companion_name,
};
