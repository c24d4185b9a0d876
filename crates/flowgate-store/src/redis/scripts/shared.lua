-- What every script begins with; each script's own header says what its KEYS and ARGV are.
--
-- Every key of a partition begins with KEYS[1], which carries the hash tag of the partition, so
-- keys that are made here are in the slot of KEYS[1]. Redis runs a script alone: nothing changes
-- between its checks and its writes. It does not undo one, so a script checks before it writes.
--
-- A run is one hash. Its field `job:STEP` reads `PL;token;deadline;attempt;due;queue;job;instance`:
-- P is `L` for a job that is leased and `Q` for one in its queue, L is 1 where leases were lost
-- that are not in the log, which `lost:STEP` then has; deadline is in milliseconds, due in
-- microseconds; token is 0 where there is no lease; job reads `KIND:INPUTS`, or `KIND/P:INPUTS` with
-- a priority P. It is empty where the step has no job any more: that costs less than to remove it,
-- which the end of the run does.
--
-- A queue has jobs by when they are due; one that is due when it is queued is a head start ahead of
-- that for each step of its priority.
--
-- Its log has two fields for each commit, `SEQ` and `at:SEQ`, where SEQ is the number of the last
-- event. The first reads `commit;count;offset;events` and comes from the caller as it is: Lua
-- hashes every byte of every text that it makes. The second reads `time;entry;rows;token` and is
-- the same text for all commits of a batch: entry is the row of the feed that points to them, rows
-- is how many that points to, token that of their hand-offs. The first event is at the position
-- entry + offset.
--
-- A run with a leased job is in `leases` with a score that is not after the end of any of its
-- leases. It may be long before: who finds it there looks at the jobs.
local prefix = KEYS[1]
local meta_key = prefix .. 'meta'
local leases_key = prefix .. 'leases'
local call, match, sub, format = redis.call, string.match, string.sub, string.format
local UNPACK_MAX = 4000
local HEAD_START_US = 60000000
local STATE = '^(%a)(%d);(%d+);(%d+);(%d+);(%d+);([^;]*);([^;]*);(.*)$'
local ROW = '^%x*;(%d+);(%d+);'
local AT = '^(%d+);(%d+);(%d+);(%d+)$'
local ROW_OF_FEED = '([^:,]+):(%d+):(%d+):(%d+)'

-- Whether one who wants all queues but `left_out` wants this one: that of a pool only if `@` and the
-- pool are in there, since no queue has that name.
local function is_wanted(queue, left_out)
  local pool = match(queue, '@.*$')
  return not left_out[queue] and (not pool or left_out[pool])
end

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

-- Adds runs to the leases, or lets their entries be earlier: scores and ids.
local function add_leases(list)
  for from = 1, #list, UNPACK_MAX do
    call('ZADD', leases_key, 'LT', unpack(list, from, math.min(from + UNPACK_MAX - 1, #list)))
  end
end

-- Where a job that is due stands in its queue.
local function order_of(due, priority)
  return format('%d', due - (priority or 0) * HEAD_START_US)
end

-- The jobs of a run: a map from steps to what their fields read.
local function jobs_of(run_key)
  local fields, jobs = {}, {}
  for step = 1, tonumber(call('HGET', run_key, 'steps') or 0) do
    fields[step] = format('job:%d', step - 1)
  end
  if #fields > 0 then
    for at, state in ipairs(call('HMGET', run_key, unpack(fields))) do
      if state and state ~= '' then jobs[sub(fields[at], 5)] = state end
    end
  end
  return jobs, #fields
end

-- Jobs whose lease is over go back to their queues; those of at most `limit` runs.
local function expire(now, limit)
  local JOBS_MAX = 20000
  local looked = 0
  for _, id in ipairs(call('ZRANGEBYSCORE', leases_key, '-inf', now, 'LIMIT', 0, limit)) do
    local run_key, first = prefix .. 'run:' .. id, nil
    local jobs, steps = jobs_of(run_key)
    for step, state in pairs(jobs) do
      local place, _, _, ends, _, due, queue, job = match(state, STATE)
      ends = tonumber(ends)
      if place == 'L' and ends <= now then
        local order = order_of(due, match(job, '^%a+/(%d+)'))
        call('ZADD', prefix .. 'queue:' .. queue, order, id .. ':' .. step)
        call('SADD', prefix .. 'queues', queue)
        call('HSET', run_key, 'job:' .. step, 'Q' .. sub(state, 2))
      elseif place == 'L' then
        first = math.min(first or ends, ends)
      end
    end
    if first then
      call('ZADD', leases_key, first, id)
    else
      call('ZREM', leases_key, id)
    end
    looked = looked + steps
    if looked > JOBS_MAX then return end
  end
end

-- The last event of the row of a log that holds the event `seq`, and what its field `at:` reads;
-- nothing if no row up to `last` does. Rows have few events as a rule, so it looks near that
-- number first.
local function row_of(run_key, seq, last)
  local low, size = tonumber(seq), 8
  while low <= last do
    local fields = {}
    for number = low, math.min(last, low + size - 1) do
      fields[#fields + 1] = format('at:%d', number)
    end
    local found = call('HMGET', run_key, unpack(fields))
    for at = 1, #fields do
      if found[at] then return low + at - 1, found[at] end
    end
    low, size = low + #fields, math.min(size * 8, UNPACK_MAX)
  end
end

-- When a run was written last: its log says that until it is removed.
local function updated_at(run_key, version)
  local at = call('HGET', run_key, 'at:' .. version)
  return at and match(at, '^%d+') or call('HGET', run_key, 'updated_at')
end

