-- oldest code: 2
-- Whoever claims a task is told since when it was ready.

-- include: functions/reserve.sql
-- include: functions/version_4.sql
