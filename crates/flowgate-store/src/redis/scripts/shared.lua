-- What every script begins with; each script's own header says what its KEYS and ARGV are.
--
-- Every key of a partition begins with KEYS[1], which carries the hash tag of the partition, so
-- keys that are made here are in the slot of KEYS[1]. Redis runs a script alone: nothing changes
-- between its checks and its writes. It does not undo one, so a script checks before it writes.
--
-- A field `job:STEP` of a run reads `PL;token;deadline;attempt;due;queue;commit;job;instance`: P is
-- `L` for a job that is leased and `Q` for one in its queue, L is 1 where leases were lost that are
-- not in the log; deadline is in milliseconds, due in microseconds; token is 0 where there is no
-- lease, and commit is the one that granted it by hand-off.
--
-- A log is a hash with two fields for each row, `SEQ` and `events:SEQ`, where SEQ is the number of
-- its first event. The first reads `commit;time;position;count;entry;rows`, where entry is the row
-- of the feed that points to it, and rows is how many that points to. Events are never made part of
-- another text: Lua hashes every byte of every text that it makes.
local prefix = KEYS[1]
local meta_key = prefix .. 'meta'
local leases_key = prefix .. 'leases'
local call, match, sub, format = redis.call, string.match, string.sub, string.format
local UNPACK_MAX = 4000
local STATE = '^(%a)(%d);(%d+);(%d+);(%d+);(%d+);([^;]*);([^;]*);([^;]*);(.*)$'
local ROW = '^([^;]*);(%d+);(%d+);(%d+);(%d+);(%d+)$'
local ROW_OF_FEED = '([^:,]+):(%d+):(%d+)'

-- The time in milliseconds, and the microseconds beyond it.
local function clock(shift_ms)
  local time = call('TIME')
  local us = time[2] % 1000
  return time[1] * 1000 + (time[2] - us) / 1000 + (shift_ms or 0), us
end

-- Calls `command key …` with all of `list`, in bounded parts of whole pairs.
local function in_parts(command, key, list)
  for from = 1, #list, UNPACK_MAX do
    call(command, key, unpack(list, from, math.min(from + UNPACK_MAX - 1, #list)))
  end
end

-- Jobs whose lease is over go back to their queues; at most `limit` of them.
local function expire(now, limit)
  local over = call('ZRANGEBYSCORE', leases_key, '-inf', now, 'LIMIT', 0, limit)
  for _, member in ipairs(over) do
    local run_key, field = prefix .. 'run:' .. sub(member, 1, 36), 'job:' .. sub(member, 38)
    local state = call('HGET', run_key, field)
    if state then
      local _, _, _, _, _, due, queue = match(state, STATE)
      call('ZADD', prefix .. 'queue:' .. queue, due, member)
      call('SADD', prefix .. 'queues', queue)
      call('HSET', run_key, field, 'Q' .. sub(state, 2))
    end
    call('ZREM', leases_key, member)
  end
end

-- The row of a log that holds the event `seq`, and the number of its first event. Rows have few
-- events as a rule, so it looks near that number first.
local function row_of(log_key, seq)
  local high, size = tonumber(seq), 8
  while high >= 1 do
    local fields = {}
    for number = high, math.max(1, high - size + 1), -1 do
      fields[#fields + 1] = format('%d', number)
    end
    local found = call('HMGET', log_key, unpack(fields))
    for at = 1, #fields do
      if found[at] then return found[at], high - at + 1 end
    end
    high, size = high - #fields, math.min(size * 8, UNPACK_MAX)
  end
end

