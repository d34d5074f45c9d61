/* SPDX-License-Identifier: MIT
 *
 * redlock_script.c: what each master does, each in one atomic step. The rules are those of model/redlock.pml, to the
 * letter; model/README.md says what breaks without each of them.
 *
 *   NAME         string   owner "client.serial.attempt", or whatever other Redlock clients write; ends by itself.
 *                         "owner+N" after a renewal that others may be behind
 *   hf:{NAME}:t  string   "token owner s us host pid note": the last token; "!owner" if it was not stored by this
 *                         owner since it took the lock here, but is only the clock of that moment. On a second line, if
 *                         there are any, the marks
 *   hf:{NAME}:w  zset     on the usher, "client.serial host pid note" by order of arrival: who waits
 *   hf:{NAME}:d  string   the record that the work is done, "token owner s us ends host pid note", as redis_once.c has
 *                         it; ends by itself. "token -": what was done up to this token is forgotten
 *   hf:{NAME}:b  string   "owner who": the lock of this owner was broken by whom; ends when the lock would have ended
 *
 * KEYS are the first three, the queue in the middle; and one of the others as the fourth where it matters.
 *
 * A request whose connection broke may arrive after its successors. Whoever lost a connection on which something was
 * unanswered has its next request leave a mark, "client.serial.attempt s": all of this hold up to that attempt does
 * nothing any more, until second s. Of more than 1000 marks the oldest are forgotten.
 */
#include "engines/redis/redis_lua.h"
#include "redlock.h"

/* clang-format off */

/* Of ARGV[1], "client.serial." and the number of the attempt. */
#define NUMBER                                                                                                         \
    "local base, number = string.match(ARGV[1], '^(.*%.)(%d+)$')\n"                                                    \
    "number = tonumber(number)\n"

/* ours: that of the attempt that has it, if it is of the same hold. Expects value, base. */
#define OURS                                                                                                           \
    "local ours = type(value) == 'string' and string.sub(value, 1, #base) == base\n"                                   \
    "  and tonumber(string.match(value, '^%d+', #base + 1))\n"

/* void: nothing of this hold up to that attempt counts. Expects the last grant, base, c. */
#define READ_MARKS                                                                                                     \
    "local void = 0\n"                                                                                                 \
    "if marks and marks ~= '' then\n"                                                                                  \
    "  local _, to = string.find(marks, ' ' .. base, 1, true)\n"                                                       \
    "  void = to and tonumber(string.match(marks, '^%d+', to + 1)) or 0\n"                                             \
    "  if string.match(marks, '%d+$') - c[1] < 0 then marks = '' end\n"                                                \
    "end\n"

/* NUMBER is void from now on. Begins with a write that is never refused. Expects the last grant, base, c. */
#define LEAVE_MARK_OF(NUMBER)                                                                                          \
    "local left = math.max(redis.call('pttl', KEYS[3]), 3600000)\n"                                                    \
    "redis.call('pexpire', KEYS[3], left)\n"                                                                           \
    "local kept = {}\n"                                                                                                \
    "for old, s in string.gmatch(marks or '', '(%S+) (%d+)') do\n"                                                     \
    "  if string.sub(old, 1, #base) ~= base and s - c[1] > 0 then kept[#kept + 1] = ' ' .. old .. ' ' .. s end\n"      \
    "end\n"                                                                                                            \
    "kept[#kept + 1] = ' ' .. base .. " NUMBER " .. ' ' .. string.format('%.0f', c[1] + 3600)\n"                       \
    "marks = '\\n' .. table.concat(kept, '', math.max(1, #kept - 999))\n"                                             \
    "redis.call('set', KEYS[3], string.format('%.0f', last) .. ' ' .. (owner or '-') .. ' ' .. (info or '')\n"         \
    "  .. marks, 'px', left)\n"

/* Who has it, under one name however often it was renewed. */
#define WITHOUT_RENEWALS(TEXT) "(string.match(" TEXT ", '^(%x+%.%d+%.%d+)%+%d+$') or " TEXT ")"

/* If there is a record at KEY that the work is done: { -2, now, record }. Expects now. */
#define ANSWER_IF_DONE(KEY)                                                                                            \
    "local record = redis.call('get', " KEY ")\n"                                                                      \
    "if record and not string.find(record, '^%d+ %-$') then return { -2, now, record } end\n"

/* ARGV owner, "host pid note", ttl, 1 to line up (2: and to go behind those who wait), guess, "client.serial", 1 to
 * leave a mark: earlier attempts are void. Taken: { 1, now, the guess if it was stored, else a proposal, how many wait,
 * our score }. Else { 0, now, left ms, place, the holder, "s us host pid note" }.
 *
 * As a rule nobody has it and nobody waits: what is not needed to see that is not looked at. TRY_FREE may set `taken`.
 *
 * What an earlier attempt of the same hold left here, because its release was lost, is as good as free. Whoever does
 * not line up here gives up the place that it had: the call would go to somebody who listens to another usher now.
 *
 * Where it is done, whoever asks for it once keeps the place or the vote that it had: its release ends that. */
#define ACQUIRE(TRY_FREE, OR_SAY_DONE)                                                                                 \
    LAST_GRANT CLOCK                                                                                                   \
    "local me, member = ARGV[1], ARGV[6] .. ' ' .. ARGV[2]\n"                                                          \
    NUMBER READ_MARKS                                                                                                  \
    "if number <= void then return { 0, now, -1, -1, '', '' } end\n"                                                   \
    "local waiting = redis.call('zcard', KEYS[2])\n"                                                                   \
    "local taken = false\n"                                                                                            \
    TRY_FREE                                                                                                           \
    "local value = not taken and redis.pcall('get', KEYS[1])\n"                                                        \
    OURS                                                                                                               \
    "if ours and ours > number then return { 0, now, -1, -1, '', '' } end\n"                                           \
    "if ARGV[7] == '1' then\n"                                                                                         \
    LEAVE_MARK_OF("number - 1")                                                                                        \
    "end\n"                                                                                                            \
    OR_SAY_DONE                                                                                                        \
    "local busy = value and not ours\n"                                                                                \
    "local place = -1\n"                                                                                               \
    "local score = waiting > 0 and redis.call('zscore', KEYS[2], member)\n"                                            \
    "if ARGV[4] ~= '0' and (busy or ARGV[4] == '2' and waiting > 0) then\n"                                            \
    "  local new = redis.call('zadd', KEYS[2], 'nx', now, member) == 1\n"                                              \
    "  redis.call('pexpire', KEYS[2], 86400000)\n"                                                                     \
    "  if new and not busy then\n"                                                                                     \
    CALL_NEXT(TO_CLIENT, "member")                                                                                     \
    "  end\n"                                                                                                          \
    "  place = redis.call('zrank', KEYS[2], member)\n"                                                                 \
    "  busy = busy or (new and place > 0)\n"                                                                           \
    "end\n"                                                                                                            \
    "if busy then\n"                                                                                                   \
    "  if score and ARGV[4] == '0' then redis.call('zrem', KEYS[2], member) end\n"                                     \
    "  local text = type(value) == 'string' and " WITHOUT_RENEWALS("value") " or ''\n"                                 \
    "  if owner ~= text and owner ~= '!' .. text then info = '' end\n"                                                 \
    "  return { 0, now, redis.call('pttl', KEYS[1]), place, text, info }\n"                                            \
    "end\n"                                                                                                            \
    "if not taken then redis.call('set', KEYS[1], me, 'px', ARGV[3]) end\n"                                            \
    "local guess = tonumber(ARGV[5])\n"                                                                                \
    "local token = last < now and now or last + 1\n"                                                                   \
    "local answer = token\n"                                                                                           \
    "if owner == me and last == guess then\n"                                                                          \
    "  answer = guess\n"                                                                                               \
    "elseif guess >= token then\n"                                                                                     \
    "  token, answer = guess, guess\n"                                                                                 \
    KEEP_TOKEN("me")                                                                                                   \
    "elseif value ~= me then\n"                                                                                        \
    "  token = token - 1\n"                                                                                            \
    KEEP_TOKEN("'!' .. me")                                                                                            \
    "end\n"                                                                                                            \
    "if score or place >= 0 then\n"                                                                                    \
    "  redis.call('zrem', KEYS[2], member)\n"                                                                          \
    "  waiting = redis.call('zcard', KEYS[2])\n"                                                                       \
    "end\n"                                                                                                            \
    "return { 1, now, answer, waiting, score or '' }\n"

/* In one step, unless something comes before it: a place behind others, or a mark. */
static const char acquire[] = ACQUIRE(
    "if ARGV[4] ~= '2' and ARGV[7] ~= '1' then\n"
    "  local set = redis.pcall('set', KEYS[1], me, 'px', ARGV[3], 'nx')\n"
    "  taken = set and set.ok\n"
    "end\n", "");
static const char acquire_once[] = ACQUIRE("", ANSWER_IF_DONE("KEYS[4]"));

/* ARGV owner, "host pid note", ttl, token. 1: stored. */
static const char write_back[] =
    LAST_GRANT CLOCK
    "local me, token = ARGV[1], tonumber(ARGV[4])\n"
    "if redis.pcall('get', KEYS[1]) ~= me then return 0 end\n"
    "if last > token or (last == token and owner ~= me) then return 0 end\n"
    KEEP_TOKEN("me")
    "return 1\n";

/* ARGV owner, "client.serial host pid note", "" or a score: stay in the queue (0: at its end), 1 to leave a mark: this
 * attempt is void, unless it is here. { 1 if it was held, our place, 1 if it is free now }. Whoever saw us here in the
 * way waits for a call, also if we never had a majority. What an earlier attempt of the same hold left here, because
 * its own release was lost, goes too. */
#define RELEASE(UNDISTURBED, LEAVE_DONE, MARK)                                                                         \
    "local value = redis.pcall('get', KEYS[1])\n"                                                                      \
    UNDISTURBED                                                                                                        \
    NUMBER OURS                                                                                                        \
    "if ours and ours > number then return { 0, -1, 0 } end\n"                                                         \
    LEAVE_DONE                                                                                                         \
    "local stay, place = ARGV[3] ~= '', -1\n"                                                                          \
    "if stay or " MARK " == '1' or redis.call('zscore', KEYS[2], ARGV[2]) then\n"                                      \
    LAST_GRANT CLOCK READ_MARKS                                                                                        \
    "  if number <= void then return { 0, -1, 0 } end\n"                                                               \
    "  if ours then redis.call('del', KEYS[1]) end\n"                                                                  \
    "  if " MARK " == '1' and ours ~= number then\n"                                                                   \
    LEAVE_MARK_OF("number")                                                                                            \
    "  end\n"                                                                                                          \
    "  if stay then\n"                                                                                                 \
    "    redis.call('zadd', KEYS[2], 'nx', ARGV[3] == '0' and now or ARGV[3], ARGV[2])\n"                              \
    "    redis.call('pexpire', KEYS[2], 86400000)\n"                                                                   \
    "  else\n"                                                                                                         \
    "    redis.call('zrem', KEYS[2], ARGV[2])\n"                                                                       \
    "  end\n"                                                                                                          \
    "elseif ours then\n"                                                                                               \
    "  redis.call('del', KEYS[1])\n"                                                                                   \
    "end\n"                                                                                                            \
    "local free = redis.call('exists', KEYS[1]) == 0\n"                                                                \
    "if free then\n"                                                                                                   \
    CALL_NEXT(TO_CLIENT, "ARGV[2]")                                                                                    \
    "end\n"                                                                                                            \
    "if stay then place = redis.call('zrank', KEYS[2], ARGV[2]) end\n"                                                 \
    "return { ours == number and 1 or 0, place, free and 1 or 0 }\n"

/* As a rule it is held, and nobody waits. */
static const char release[] = RELEASE(
    "if value == ARGV[1] and ARGV[3] == '' and ARGV[4] ~= '1' and redis.call('exists', KEYS[2]) == 0 then\n"
    "  redis.call('del', KEYS[1])\n"
    "  return { 1, -1, 1 }\n"
    "end\n", "", "ARGV[4]");

/* ARGV[4] the token, [5] for how many ms it counts as done, [6] 1 to leave a mark. Repeated after its answer was lost,
 * it finds its own record; whoever does not hold it here, or was forgotten since, leaves none. The lock goes first: a
 * DEL is not refused for want of memory, and nor is what follows it. */
static const char release_done[] = RELEASE("",
    "local known, by = string.match(redis.call('get', KEYS[4]) or '', '^(%d+) (%S+)')\n"
    "if by == ARGV[1] then return { 1, -1, 0 } end\n"
    "if ours == number and (tonumber(known) or 0) < tonumber(ARGV[4]) then\n"
    "  local c = redis.call('time')\n"
    "  redis.call('del', KEYS[1])\n"
    "  local ends = string.format('%.0f', c[1] * 1000 + math.floor(c[2] / 1000) + ARGV[5])\n"
    "  redis.call('set', KEYS[4], ARGV[4] .. ' ' .. ARGV[1] .. ' ' .. c[1] .. ' ' .. c[2] .. ' ' .. ends .. ' '\n"
    "    .. string.sub(ARGV[2], #base + 1), 'px', ARGV[5])\n"
    "end\n", "ARGV[6]");

/* KEYS the locks, and then for each where the words about a break are. Of each 1, or 0 if it is not here (any more);
 * instead of 0, if it was broken here, by whom. */
static const char renew[] = RENEW_STRINGS("#KEYS / 2",
    "  local by = answer[i] == 0 and redis.pcall('get', KEYS[#KEYS / 2 + i])\n"
    "  local whose = " HOLDER_OF("me") " .. ' '\n"
    "  if type(by) == 'string' and string.sub(by, 1, #whose) == whose then\n"
    "    answer[i] = string.sub(by, #whose + 1)\n"
    "  end\n");

/* { holder, token, left ms, held for ms, "host pid note", waiters… }; the holder is "" if there is none. */
static const char look[] =
    LAST_GRANT CLOCK
    "local value = redis.pcall('get', KEYS[1])\n"
    "value = type(value) == 'string' and " WITHOUT_RENEWALS("value") " or ''\n"
    "local answer = { value, 0, redis.call('pttl', KEYS[1]), -1, '' }\n"
    "local s, us, who = string.match(info or '', '^(%d+) (%d+) (.*)$')\n"
    "if s and (owner == value or owner == '!' .. value) then\n"
    "  answer = { value, owner == value and last or 0, answer[3], (now - s * 1000000 - us) / 1000, who }\n"
    "end\n"
    "for i, member in ipairs(redis.call('zrange', KEYS[2], 0, -1)) do answer[5 + i] = member end\n"
    "return answer\n";

/* ARGV "" or whom it is to break, by whom. Answers whom it would break; or the owner that it has broken, 1 if that was
 * none of ours, 0 if there was none. The name of a lock is that of a key, whosever it is: GET fails on what is no lock,
 * before it is deleted. That goes first: a DEL is not refused for want of memory, and nor is what follows it. */
static const char evict[] =
    "local value = redis.call('get', KEYS[1])\n"
    "local owner = value and string.match(value, '^%x+%.%d+%.%d+')\n"
    "if value then\n"
    ONLY_WHOM_WAS_SEEN(WITHOUT_RENEWALS("value"))
    "  local left = redis.call('pttl', KEYS[1])\n"
    "  redis.call('del', KEYS[1])\n"
    "  if owner and left > 0 then redis.pcall('set', KEYS[4], owner .. ' ' .. ARGV[2], 'px', left) end\n"
    "end\n"
    CALL_NEXT(TO_CLIENT, "nil")
    "return owner or value and 1 or 0\n";

/* ARGV the owner that was broken, by whom. */
static const char tell[] = TELL_HOLDER("ARGV[1]") "return 1\n";

/* --- what is done: the only key is that of the record --- */

static const char look_done[] =
    CLOCK
    ANSWER_IF_DONE("KEYS[1]")
    "return 0\n";

/* ARGV token. What was done up to it is forgotten; and a release that is late leaves no record of it here any more, for
 * an hour, which is ample. */
static const char forget_done[] =
    "local known = string.match(redis.call('get', KEYS[1]) or '', '^%d+')\n"
    "if (tonumber(known) or 0) <= tonumber(ARGV[1]) then\n"
    "  redis.call('del', KEYS[1])\n"
    "  redis.call('set', KEYS[1], ARGV[1] .. ' -', 'px', 3600000)\n"
    "end\n"
    "return 1\n";
/* clang-format on */

const char *const hfi_redlock_scripts[REDLOCK_SCRIPTS] = {
    acquire, acquire_once, write_back, release, release_done, renew, look, evict, tell, look_done, forget_done,
};
