-- Applies each commit of a batch or refuses it, in order. All that is written is written at the
-- end, out of a picture of the runs, so a key of a wrong type fails the call before it wrote.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  instance that takes jobs by hand-off; empty for none
-- ARGV[2]  milliseconds of its leases
-- ARGV[3]  position that the caller knows to be written
-- ARGV[4]  channel for hints
-- ARGV[5]  number of commits; then for each:
--   run id, commit id, version before (empty for a start), version after, status, whether it is
--   terminal (1, 0), number of events, record, events, number of guards, of changes, of indexes;
--   for each guard: step, token;
--   for each change: `remove`, step | `postpone`, step, due (`+` and a span, `@` and a time),
--   attempt | `put`, step, due, attempt, queue, job, whether to hand it off (1, 0);
--   for a start its indexes as JSON, and then one by one.
-- Reply    time, deadline of what was handed off, 1 if the known position is not written, last
--   position; then for each commit an array: 0 (applied), and step and token of each hand-off |
--   1 (the run is there) | 2 (it is at another version) | 3 (a lease is lost), step | 4 (applied
--   before), record, and step, token, attempt, deadline, job of each lease of its hand-off
local meta = call('HMGET', meta_key, 'clock_ms', 'position', 'token', 'partitions', 'partition',
  'due_wanted_until', 'feed_wanted_until')
local now, us = clock(meta[1])
local position, token = tonumber(meta[2]), tonumber(meta[3])
local partitions, partition = tonumber(meta[4]), tonumber(meta[5])
local instance, deadline = ARGV[1], format('%d', now + ARGV[2])
local is_truncated = position < tonumber(ARGV[3]) and 1 or 0
local now_text, due_now = format('%d', now), now * 1000
local replies = { now, tonumber(deadline), is_truncated, position }

-- How many arguments a change has.
local WIDTHS = { remove = 2, postpone = 4, put = 7 }

local runs, touched, rows = {}, {}, {}
local leases, queues, indexes = {}, {}, {}
local tickets, is_hinted = 0, false

local function in_map(maps, name)
  local map = maps[name]
  if not map then
    map = {}
    maps[name] = map
  end
  return map
end

-- Jobs that are due at the same millisecond are claimed in the order in which they became so.
local function due_of(text)
  tickets = tickets + 1
  local span = tonumber(sub(text, 2))
  if sub(text, 1, 1) == '@' then
    return span * 1000 + math.min(tickets - 1, 999), span <= now
  elseif span == 0 then
    return due_now + math.min(us + tickets - 1, 999), true
  end
  return (now + span) * 1000 + math.min(tickets - 1, 999), false
end

local function enqueue(queue, member, due)
  in_map(queues, queue)[member] = due
  is_hinted = true
end

-- Takes a job out of where its state says that it is.
local function withdraw(member, state)
  if sub(state, 1, 1) == 'L' then
    leases[member] = false
  else
    local _, _, _, _, _, _, queue = match(state, STATE)
    in_map(queues, queue)[member] = false
  end
end

local function state_of(run, step)
  local state = run.states[step]
  if state == nil then
    state = run.is_stored and call('HGET', run.key, 'job:' .. step)
    run.states[step] = state
  end
  return state
end

local function load(id, guard_at, guards, change_at, changes)
  local run = { key = prefix .. 'run:' .. id, states = {}, changed = {} }
  local fields = { 'version', 'status', 'open_jobs', 'started_at' }
  local count = 4
  for at = guard_at, guard_at + 2 * guards - 2, 2 do
    count = count + 1
    fields[count] = 'job:' .. ARGV[at]
  end
  local at = change_at
  for _ = 1, changes do
    count = count + 1
    fields[count] = 'job:' .. ARGV[at + 1]
    at = at + WIDTHS[ARGV[at]]
  end
  local found = call('HMGET', run.key, unpack(fields))
  run.version, run.status, run.started_at = found[1], found[2], found[4]
  run.stored_status, run.stored_open = found[2], found[3]
  run.open, run.is_stored = tonumber(found[3] or 0), found[1] and true
  for index = 5, count do run.states[sub(fields[index], 5)] = found[index] end
  runs[id] = run
  return run
end

local function held(state, lease_token)
  if not state then return false end
  local found, ends = match(state, '^L%d;(%d+);(%d+);')
  return found == lease_token and tonumber(ends) > now
end

local function handed_off_again(reply, run, commit, change_at, changes)
  reply[1], reply[2] = 4, run.record or call('HGET', run.key, 'record')
  local at = change_at
  for _ = 1, changes do
    local step = ARGV[at + 1]
    local state = ARGV[at] == 'put' and state_of(run, step)
    if state then
      local place, _, lease_token, ends, attempt, _, _, by, job, who = match(state, STATE)
      if place == 'L' and by == commit and who == instance and tonumber(ends) > now then
        for _, value in ipairs({ step, lease_token, attempt, ends, job }) do
          reply[#reply + 1] = value
        end
      end
    end
    at = at + WIDTHS[ARGV[at]]
  end
end

local function remove(run, member, step, state)
  withdraw(member, state)
  run.has_lost = run.has_lost or sub(state, 2, 2) == '1'
  run.states[step], run.changed[step] = false, true
  run.open = run.open - 1
end

local function change(reply, run, id, commit, at)
  local kind, step = ARGV[at], ARGV[at + 1]
  local member, state = id .. ':' .. step, state_of(run, step)
  if kind == 'remove' then
    if state then remove(run, member, step, state) end
    return
  elseif kind == 'postpone' and not state then
    return
  end
  local due, is_due = due_of(ARGV[at + 2])
  local attempt, lost, queue, job = ARGV[at + 3], '0', ARGV[at + 4], ARGV[at + 5]
  if state then
    withdraw(member, state)
    run.has_lost = run.has_lost or sub(state, 2, 2) == '1'
    if kind == 'postpone' then
      local _
      _, lost, _, _, _, _, queue, _, job = match(state, STATE)
    end
  else
    run.open = run.open + 1
  end
  if is_due and kind == 'put' and ARGV[at + 6] == '1' then
    token = token + 1
    local granted = format('%d', token * partitions + partition)
    state = format('L0;%s;%s;%d;%d;%s;%s;%s;%s', granted, deadline, attempt + 1, due, queue, commit,
      job, instance)
    leases[member] = deadline
    reply[#reply + 1] = step
    reply[#reply + 1] = granted
  else
    state = format('Q%s;0;0;%s;%d;%s;;%s;', lost, attempt, due, queue, job)
    enqueue(queue, member, due)
  end
  run.states[step], run.changed[step] = state, true
end

local function end_run(run, id, status)
  if run.open > 0 and run.is_stored then
    for _, field in ipairs(call('HKEYS', run.key)) do
      local step = match(field, '^job:(%d+)$')
      if step then state_of(run, step) end
    end
  end
  for step, state in pairs(run.states) do
    if state then remove(run, id .. ':' .. step, step, state) end
  end
  in_map(indexes, 'open')[id] = false
  in_map(indexes, 'ended')[id] = now
  if status ~= 'completed' then in_map(indexes, status)[id] = run.started_at end
  run.ended_at = now_text
end

local function apply(run, id, commit, at)
  local status, count = ARGV[at + 4], tonumber(ARGV[at + 6])
  local guards, changes = tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10])
  local guard_at = at + 12
  local change_at = guard_at + 2 * guards
  local reply = { 0 }
  local is_start = not run.version
  -- A commit under a lease has written the leases that were lost before it.
  for guard = guard_at, guard_at + 2 * guards - 2, 2 do
    local step = ARGV[guard]
    local state = run.states[step]
    if sub(state, 2, 2) == '1' then
      run.states[step], run.changed[step], run.has_lost = 'L0' .. sub(state, 3), true, true
    end
  end
  if not run.is_touched then
    run.is_touched = true
    touched[#touched + 1] = run
  end
  local seq = format('%d', ARGV[at + 3] - count + 1)
  run.version, run.status, run.record = ARGV[at + 3], status, ARGV[at + 7]
  run.commits = run.commits or {}
  run.commits[seq] = commit
  rows[#rows + 1] = { id, seq, commit, position + 1, ARGV[at + 6], ARGV[at + 8] }
  position = position + count
  local is_ended = ARGV[at + 5] == '1'
  for _ = 1, changes do
    if not is_ended then change(reply, run, id, commit, change_at) end
    change_at = change_at + WIDTHS[ARGV[change_at]]
  end
  if is_start then
    run.started_at, run.indexes = now_text, ARGV[change_at]
    for name = change_at + 1, change_at + ARGV[at + 11] do in_map(indexes, ARGV[name])[id] = now end
    if not is_ended then in_map(indexes, 'open')[id] = now end
  end
  if is_ended then end_run(run, id, status) end
  return reply
end

local function judge_and_apply(at)
  local id, commit, before = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local guards, changes = tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10])
  local guard_at = at + 12
  local change_at = guard_at + 2 * guards
  local run = runs[id] or load(id, guard_at, guards, change_at, changes)
  local refusal
  if before == '' then
    if run.version then refusal = 1 end
  elseif run.version ~= before or run.ended_at or run.status == 'completed'
    or run.status == 'failed' or run.status == 'cancelled' then
    refusal = 2
  end
  -- The version decides before a lease does: this commit may have ended the lease.
  if refusal then
    local seq = format('%d', (before == '' and 0 or before) + 1)
    local written = run.commits and run.commits[seq]
    if not written and run.is_stored then
      local row = call('HGET', prefix .. 'log:' .. id, seq)
      written = row and match(row, '^[^;]*')
    end
    local reply = { refusal }
    if written == commit then handed_off_again(reply, run, commit, change_at, changes) end
    return reply
  end
  for guard = guard_at, guard_at + 2 * guards - 2, 2 do
    if not held(state_of(run, ARGV[guard]), ARGV[guard + 1]) then return { 3, ARGV[guard] } end
  end
  return apply(run, id, commit, at)
end

local at = 6
for _ = 1, tonumber(ARGV[5]) do
  replies[#replies + 1] = judge_and_apply(at)
  local changes, names = tonumber(ARGV[at + 10]), tonumber(ARGV[at + 11])
  at = at + 12 + 2 * ARGV[at + 9]
  for _ = 1, changes do at = at + WIDTHS[ARGV[at]] end
  if names > 0 then at = at + names + 1 end
end
replies[4] = position
if #rows == 0 then return replies end

-- The first write is one that Redis refuses when it is out of memory, so that is before all.
call('HSET', meta_key, 'position', position, 'token', token)
for _, run in ipairs(touched) do
  local set = { 'version', run.version, 'record', run.record, 'updated_at', now_text }
  local count, removed = 6, nil
  if run.status ~= run.stored_status then
    set[count + 1], set[count + 2], count = 'status', run.status, count + 2
  end
  if run.open ~= tonumber(run.stored_open) then
    set[count + 1], set[count + 2], count = 'open_jobs', run.open, count + 2
  end
  if run.indexes then
    set[count + 1], set[count + 2] = 'indexes', run.indexes
    set[count + 3], set[count + 4], count = 'started_at', run.started_at, count + 4
  end
  if run.ended_at then set[count + 1], set[count + 2], count = 'ended_at', run.ended_at, count + 2 end
  for step in pairs(run.changed) do
    local state = run.states[step]
    if state then
      set[count + 1], set[count + 2], count = 'job:' .. step, state, count + 2
    else
      removed = removed or {}
      removed[#removed + 1] = 'job:' .. step
    end
    if run.has_lost and (not state or sub(state, 2, 2) == '0') then
      removed = removed or {}
      removed[#removed + 1] = 'lost:' .. step
    end
  end
  call('HSET', run.key, unpack(set))
  if removed and run.is_stored then call('HDEL', run.key, unpack(removed)) end
end
-- One row of the feed for the whole batch: it costs as much as one for each commit.
local entry, pointers = format('%d', rows[1][4]), {}
local tail = ';' .. entry .. ';' .. #rows
for at_row, row in ipairs(rows) do
  local id, seq = row[1], row[2]
  call('HSET', prefix .. 'log:' .. id, seq,
    row[3] .. ';' .. now_text .. ';' .. format('%d', row[4]) .. ';' .. row[5] .. tail,
    'events:' .. seq, row[6])
  pointers[at_row] = id .. ':' .. seq .. ':' .. row[5]
end
call('XADD', prefix .. 'feed', entry .. '-0', 'rows', table.concat(pointers, ','))

local function write_set(key, map)
  local added, removed = {}, {}
  for member, score in pairs(map) do
    if score then
      added[#added + 1], added[#added + 2] = score, member
    else
      removed[#removed + 1] = member
    end
  end
  if #added > 0 then in_parts('ZADD', key, added) end
  if #removed > 0 then in_parts('ZREM', key, removed) end
  return #added > 0
end
write_set(leases_key, leases)
for queue, map in pairs(queues) do
  if write_set(prefix .. 'queue:' .. queue, map) then call('SADD', prefix .. 'queues', queue) end
end
for name, map in pairs(indexes) do write_set(prefix .. name, map) end

local is_due_wanted = is_hinted and tonumber(meta[6] or 0) > now
if is_due_wanted or tonumber(meta[7] or 0) > now then
  call('PUBLISH', ARGV[4], is_due_wanted and 'due' or 'feed')
end
return replies
