"""What clients write down about their records: the events, their stored lines, sets of offsets.

Applications import this room, so it imports nothing but `shared`. Begin at `model`.
"""
