"""What operators and dashboards get while nothing is decided: the watch's alarms, their causes, gauges, the journal's lines.

Begin at `watch`. No gate reads this room.
"""
