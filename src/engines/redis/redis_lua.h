/* SPDX-License-Identifier: MIT
 *
 * redis_lua.h: lines of Lua that several scripts share.
 */
#ifndef HFI_REDIS_LUA_H
#define HFI_REDIS_LUA_H

/* clang-format off */

/* c: the server's time as it says it; now: in microseconds. */
#define CLOCK                                                                                                          \
    "local c = redis.call('time')\n"                                                                                   \
    "local now = c[1] * 1000000 + c[2]\n"

/* Where the lock is in somebody else's format, KEYS[3] keeps the last grant: its token (0: none), owner, and "s us host
 * pid note". */
#define LAST_GRANT                                                                                                     \
    "local last, owner, info = string.match(redis.call('get', KEYS[3]) or '', '^(%d+) (%S+) (.*)$')\n"                 \
    "last = tonumber(last) or 0\n"

/* Keeps `token` as the last one, of OWNER, for a day longer than the ARGV[3] ms that it lasts; and for longer still if
 * it is ahead of this server's clock, which must not fall behind it once it is forgotten. */
#define KEEP_TOKEN(OWNER)                                                                                              \
    "redis.call('set', KEYS[3], string.format('%.0f', token) .. ' ' .. " OWNER " .. ' ' .. c[1] .. ' ' .. c[2]\n"      \
    "  .. ' ' .. ARGV[2], 'px', string.format('%.0f', ARGV[3] + 86400000 + math.max(0, token - now) / 1000))\n"

/* token: the larger of the last one + 1 and the server's microseconds; kept, of `me`. */
#define NEW_GRANT                                                                                                      \
    "local token = last < now and now or last + 1\n"                                                                   \
    KEEP_TOKEN("me")

/* KEYS[2] is the queue: calls the first waiter who is there to hear it, and strikes off the dead before it; but not ME,
 * who asks again by itself. A channel that the ACL refuses calls nobody; the waiters come by themselves then. */
#define CALL_NEXT(CHANNEL, ME)                                                                                         \
    "while true do\n"                                                                                                  \
    "  local first = redis.call('zrange', KEYS[2], 0, 0)[1]\n"                                                         \
    "  if not first or first == " ME " then break end\n"                                                               \
    "  local space = string.find(first, ' ', 18, true)\n"                                                              \
    "  local client = string.sub(first, 1, 16)\n"                                                                      \
    "  local heard = redis.pcall(" CHANNEL ", string.sub(first, 18, space - 1))\n"                                     \
    "  if type(heard) == 'table' or heard > 0 then break end\n"                                                        \
    "  redis.call('zrem', KEYS[2], first)\n"                                                                           \
    "end\n"

/* On the channel of the waiter's client. */
#define TO_CLIENT "'publish', 'hf:c:' .. client"

/* KEYS locks that are strings; ARGV owner and ttl of each. Never takes a lock that is gone. */
#define RENEW_STRINGS                                                                                                  \
    "local answer = {}\n"                                                                                              \
    "for i, key in ipairs(KEYS) do\n"                                                                                  \
    "  answer[i] = 0\n"                                                                                                \
    "  if redis.pcall('get', key) == ARGV[2 * i - 1] then answer[i] = redis.call('pexpire', key, ARGV[2 * i]) end\n"   \
    "end\n"                                                                                                            \
    "return answer\n"

/* clang-format on */

#endif
