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

/* Keeps a new grant of `token` to `me`, which lasts ARGV[3] ms, for a day longer; and for longer still if the token is
 * ahead of this server's clock, which must not fall behind it once it is forgotten. */
#define KEEP_GRANT                                                                                                     \
    "redis.call('set', KEYS[3], string.format('%.0f', token) .. ' ' .. me .. ' ' .. c[1] .. ' ' .. c[2] .. ' '\n"      \
    "  .. ARGV[2], 'px', string.format('%.0f', ARGV[3] + 86400000 + math.max(0, token - now) / 1000))\n"

/* token: the larger of the last one + 1 and the server's microseconds. */
#define NEW_GRANT                                                                                                      \
    "local token = last < now and now or last + 1\n"                                                                   \
    KEEP_GRANT

/* clang-format on */

#endif
