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
 * pid note"; and, behind the end of the line, the marks. */
#define LAST_GRANT                                                                                                     \
    "local last, owner, info, marks =\n"                                                                               \
    "  string.match(redis.call('get', KEYS[3]) or '', '^(%d+) (%S+) ([^\\n]*)(.*)$')\n"                                \
    "last = tonumber(last) or 0\n"

/* --- requests that were given up, and arrive all the same --- */

/* A mark is " owner s": whoever released what it may still be granted left it, and nothing is granted to that owner any
 * more. It is forgotten at second s; of more than 1000 the oldest are. Expects c and now. Sets stale: the time of all
 * is over. */
#define REFUSE_MARKED(MARKS)                                                                                           \
    "local stale = false\n"                                                                                            \
    "if " MARKS " and " MARKS " ~= '' then\n"                                                                          \
    "  if string.find(" MARKS ", ' ' .. ARGV[1] .. ' ', 1, true) then return { -1, now, -1, -1, '' } end\n"            \
    "  stale = string.match(" MARKS ", '%d+$') - c[1] < 0\n"                                                           \
    "end\n"

/* Sets marks: those in OLD whose time has not come, and one for ARGV[1]. */
#define ADD_MARK(OLD)                                                                                                  \
    "local kept = {}\n"                                                                                                \
    "for owner, s in string.gmatch(" OLD ", '(%S+) (%d+)') do\n"                                                       \
    "  if owner ~= ARGV[1] and s - c[1] > 0 then kept[#kept + 1] = ' ' .. owner .. ' ' .. s end\n"                     \
    "end\n"                                                                                                            \
    "kept[#kept + 1] = ' ' .. ARGV[1] .. ' ' .. string.format('%.0f', c[1] + 3600)\n"                                  \
    "local marks = table.concat(kept, '', math.max(1, #kept - 999))\n"

/* In a release, beside the last grant; begins with a write that is never refused. */
#define LEAVE_MARK                                                                                                     \
    "if ARGV[3] then\n"                                                                                                \
    "  local c = redis.call('time')\n"                                                                                 \
    "  local left = math.max(redis.call('pttl', KEYS[3]), 3600000)\n"                                                  \
    "  redis.call('pexpire', KEYS[3], left)\n"                                                                         \
    "  local line, old = string.match(redis.call('get', KEYS[3]) or '0 - ', '^([^\\n]*)(.*)$')\n"                      \
    ADD_MARK("old")                                                                                                    \
    "  redis.call('set', KEYS[3], line .. '\\n' .. marks, 'px', left)\n"                                               \
    "end\n"

/* A renewal is sent by "owner+N", N being how many requests of its hold had no answer, or by "owner" if there was none.
 * A holder that was renewed so is known as "owner+N" from then on: an earlier renewal does not find it any more. */
#define HOLDER_OF(TEXT) "string.match(" TEXT ", '^[^+]*')"
/* later(one, other): both are of one hold, and `one` was sent later. */
#define LATER                                                                                                          \
    "local function later(one, other)\n"                                                                               \
    "  local owner, number = string.match(one, '^([^+]*)%+(%d+)$')\n"                                                  \
    "  local same, than = string.match(other, '^([^+]*)%+?(%d*)$')\n"                                                  \
    "  return owner and owner == same and tonumber(number) > (tonumber(than) or 0)\n"                                  \
    "end\n"

/* A break asks twice: with "" whom it would break, and with that answer for breaking this one and nobody else. */
#define ONLY_WHOM_WAS_SEEN(HOLDER)                                                                                     \
    "local seen = redis.sha1hex(" HOLDER ")\n"                                                                         \
    "if ARGV[1] == '' then return seen end\n"                                                                          \
    "if ARGV[1] ~= seen then return 0 end\n"

/* Tells the client of a holder, "client.serial" or "client:serial", that its lock was broken by ARGV[2]. Others have no
 * such client, and nobody hears it. After the write that breaks it: a server that refuses to write still publishes. */
#define TELL_HOLDER(HOLDER)                                                                                            \
    "local client, serial = string.match(" HOLDER ", '^([%x-]+)[.:](%d+)')\n"                                          \
    "if client then redis.pcall('publish', 'hf:c:' .. client .. ':b', serial .. ' ' .. ARGV[2]) end\n"

/* Keeps `token` as the last one, of OWNER, for a day longer than the ARGV[3] ms that it lasts; and for longer still if
 * it is ahead of this server's clock, which must not fall behind it once it is forgotten. */
#define KEEP_TOKEN(OWNER)                                                                                              \
    "redis.call('set', KEYS[3], string.format('%.0f', token) .. ' ' .. " OWNER " .. ' ' .. c[1] .. ' ' .. c[2]\n"      \
    "  .. ' ' .. ARGV[2] .. (marks or ''), 'px',\n"                                                                    \
    "  string.format('%.0f', ARGV[3] + 86400000 + math.max(0, token - now) / 1000))\n"

/* token: the larger of the last one + 1 and the server's microseconds; kept, of `me`. */
#define NEW_GRANT                                                                                                      \
    "local token = last < now and now or last + 1\n"                                                                   \
    KEEP_TOKEN("me")

/* --- work that is done once in a while --- */

/* The record that the work of a lock is done is at the last of KEYS: "token owner s us ends host pid note", `ends` in
 * milliseconds since 1970. In front of an acquire: { -2, now, record } if there is one. */
#define UNLESS_DONE                                                                                                    \
    "local record = redis.call('get', KEYS[#KEYS])\n"                                                                  \
    "if record then\n" CLOCK                                                                                           \
    "  return { -2, now, record }\n"                                                                                   \
    "end\n"

/* Around a release: ARGV owner, "host pid note", for how many ms it counts, and 1 to leave a mark. HELD sets `token` if
 * the owner, `me`, holds the lock. Answers as the release does, or { that, why there is no record }: it frees the lock
 * in any case, and is not refused for want of memory, as it begins with a write that never is. Sent again it finds the
 * record its own, and writes, as WAIT only waits for what this connection has written. */
#define AND_RECORD_DONE(HELD, RELEASE)                                                                                 \
    "local function release(ARGV)\n" RELEASE "end\n"                                                                   \
    "local me, key = ARGV[1], KEYS[#KEYS]\n" CLOCK                                                                     \
    "local token\n" HELD                                                                                               \
    "local refused\n"                                                                                                  \
    "if token then\n"                                                                                                  \
    "  local ends = string.format('%.0f', math.floor(now / 1000) + ARGV[3])\n"                                         \
    "  redis.call('pexpire', key, ARGV[3])\n"                                                                          \
    "  local text = table.concat({ token, me, c[1], c[2], ends, ARGV[2] }, ' ')\n"                                     \
    "  local set = redis.pcall('set', key, text, 'px', ARGV[3])\n"                                                     \
    "  refused = set.err and set\n"                                                                                    \
    "end\n"                                                                                                            \
    "local answer = release({ ARGV[1], ARGV[2], ARGV[4] })\n"                                                          \
    "if refused then return { answer, refused } end\n"                                                                 \
    "local record = not token and redis.pcall('get', key)\n"                                                           \
    "if type(record) ~= 'string' then return answer end\n"                                                             \
    "local who, ends = string.match(record, '^%d+ (%S+) %d+ %d+ (%d+) ')\n"                                            \
    "if who ~= me then return answer end\n"                                                                            \
    "redis.call('pexpire', key, string.format('%.0f', ends - math.floor(now / 1000)))\n"                               \
    "return 1\n"

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

/* The first COUNT of KEYS are locks that are strings; ARGV owner and ttl of each. Never takes a lock that is gone; then
 * IF_GONE may change answer[i], which is 0. */
#define RENEW_STRINGS(COUNT, IF_GONE)                                                                                  \
    LATER                                                                                                              \
    "local answer = {}\n"                                                                                              \
    "for i = 1, " COUNT " do\n"                                                                                        \
    "  local key, me = KEYS[i], ARGV[2 * i - 1]\n"                                                                     \
    "  local value = redis.pcall('get', key)\n"                                                                        \
    "  local anew = type(value) == 'string' and later(me, value)\n"                                                    \
    "  answer[i] = (value == me or anew) and redis.call('pexpire', key, ARGV[2 * i]) or 0\n"                           \
    "  if anew then redis.call('set', key, me, 'px', ARGV[2 * i]) end\n"                                               \
    IF_GONE                                                                                                            \
    "end\n"                                                                                                            \
    "return answer\n"

/* clang-format on */

#endif
