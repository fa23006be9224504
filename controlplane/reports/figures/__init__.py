"""What a capacity review says: figures as plain JSON, read once and frozen in the run.

    review          everything together, step by step
    days            sums of requests, day by day in the schedule's zone
    capacity        KV use, watermark time, churn, worker by worker
    ranking         tenants and prefixes by what they ask for
    trend           slope and forecast with interval        anomalies    robust z-scores
    what_if         the fleet simulator, asked in a process of its own; what_if_recorded   over recorded traffic
    recommending    what follows, each with its evidence    changes      the audit log of the span

Shares are 0…1, durations carry their unit in the name, None is unknown, times are ISO 8601 in UTC.
"""
