-- Makes the partition if there is none, and says what it is. What is there is never changed.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  format
-- ARGV[2]  number of partitions
-- ARGV[3]  this partition
-- ARGV[4]  epoch of the log: random
-- Reply    format, number of partitions and epoch of what is there
if not call('HGET', meta_key, 'format') then
  call('HSET', meta_key, 'format', ARGV[1], 'partitions', ARGV[2], 'partition', ARGV[3],
    'log_epoch', ARGV[4], 'position', 0, 'token', 0, 'clock_ms', 0)
end
return call('HMGET', meta_key, 'format', 'partitions', 'log_epoch')
