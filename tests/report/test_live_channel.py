"""One run, many pages: each gets the whole and then every change; one that does not listen holds up nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from report.written_runs import step_line, write_lines
from stayfinite.report.live.channel import Channel


def test_a_page_that_sleeps_gets_the_whole_when_it_wakes(tmp_path: Path) -> None:
    write_lines(tmp_path, [step_line(0)])

    async def scene() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        ends = False
        channel = Channel(tmp_path, lambda: ends)
        awake, asleep = channel.messages(), channel.messages()
        heard = [json.loads(await anext(awake))]
        late = [json.loads(await anext(asleep))]
        for step in range(1, 60):
            write_lines(tmp_path, [step_line(step)])
            channel.follower.poll()
            changed = channel.follower.changes()
            if changed is not None:  # else the channel's own reader was first, and hands it out
                channel._hand_out(json.dumps(changed))
            heard.append(json.loads(await anext(awake)))
        late.append(json.loads(await anext(asleep)))
        ends = True
        async for _ in awake:
            continue
        async for _ in asleep:
            continue
        return heard, late

    heard, late = asyncio.run(scene())
    assert [message["step"] for message in heard if message.get("step")][-1] >= 58
    assert late[1]["whole"] is True and late[1]["step"] >= 58
    lows = late[1]["charts"][0]["series"]["loss"]["low"]
    assert len(lows) == 60
