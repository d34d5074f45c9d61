-- SPDX-License-Identifier: MIT
--
-- holdfast-guard.lua: a write that Redis or Valkey refuses if it comes from a holder who has lost the lock. Checking the
-- fencing token and writing are one atomic step, so nobody can be paused between the two.
--
--   KEYS[1]    where the largest token is kept: hf:{RESOURCE}:g, the key that hf_guard() uses
--   KEYS[2]…   the keys of the command; in a cluster in the same slot, as count:{RESOURCE} is
--   ARGV[1]    the token of the lock
--   ARGV[2]…   the command; without one the token is only checked
--
--   redis-cli --eval holdfast-guard.lua 'hf:{stock}:g' 'count:{stock}' , "$HOLDFAST_TOKEN" SET 'count:{stock}' 41
--
-- Answers what the command answers, or 1 if there is none. A token that is smaller than one that was shown before
-- changes nothing and is the error FENCED. For more than one command, put your own lines in the place of the last one.

-- Tokens have 63 bits and Lua's numbers 53, so they are compared as texts.
local function is_larger(a, b)
  return #a > #b or #a == #b and a > b
end

local function holdfast_guard(key, token)
  local seen = redis.call('get', key)
  if not string.find(token, '^[1-9]%d*$') or is_larger(token, '9223372036854775807') then
    return 'ERR ' .. token .. ' is not the token of a lock'
  elseif seen and not string.find(seen, '^[1-9]%d*$') then
    return 'WRONGTYPE what ' .. key .. ' holds is no token'
  elseif seen and is_larger(seen, token) then
    return 'FENCED token ' .. token .. ' is too old, ' .. seen .. ' was shown for ' .. key
  end
  redis.call('set', key, token)
end

local refusal = holdfast_guard(KEYS[1], ARGV[1])
if refusal then return redis.error_reply(refusal) end
if not ARGV[2] then return 1 end

return redis.call(unpack(ARGV, 2))
