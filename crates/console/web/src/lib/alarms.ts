// Counts of alarms.

import type { Alarm } from './types';

export interface AlarmCounts {
  /** Not cleared, acknowledged or not. */
  active: number;
  /** Active, and no operator acknowledged it. */
  unacknowledged: number;
}

export function countAlarms(alarms: Alarm[]): AlarmCounts {
  const active = alarms.filter((alarm) => !alarm.cleared);
  const unacknowledged = active.filter((alarm) => !alarm.acknowledged_by && !alarm.acknowledged_at);
  return { active: active.length, unacknowledged: unacknowledged.length };
}
