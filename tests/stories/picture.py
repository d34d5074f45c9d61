# SPDX-License-Identifier: MIT
"""picture.py: a story as a picture: a row for each line of the timeline, a bar for as long as somebody believes to have
the lock, red where two do, hatched while somebody is stopped."""

import textwrap
from xml.sax.saxutils import escape

WIDTH = 1100
ROW = 26
TIME = 76     # where the lanes begin
LANE = 60     # at least
LETTER = 7    # of a name above a lane
BAR = 14
COLUMNS = 118  # of text in the width that is left; what is longer is in the text below the picture

STYLE = """  <style>
    text { fill: #1f2328 }
    .title { font-size: 20px; font-weight: 600 }
    .telling { font-weight: 600 }
    .time, .name { font-size: 12px; fill: #57606a }
    .who { font-weight: 600 }
    .bad { fill: #b3261e }
    .line { stroke: #d0d7de }
  </style>
  <defs>
    <pattern id="stopped" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="3" height="6" fill="#ffffff" fill-opacity="0.75"/>
    </pattern>
  </defs>"""


class Drawing:
    def __init__(self):
        self.y, self.parts = 16, []

    def text(self, x, words, kind="", anchor=""):
        more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
        self.parts.append(f'  <text x="{x}" y="{self.y + 5}"{more}>{words}</text>')

    def lines(self, words, kind):
        for line in textwrap.wrap(words, COLUMNS + 10):
            self.text(20, escape(line), kind)
            self.y += 22

    def bar(self, x, end, kind):
        fill = {"one": "#4a9b6e", "two": "#d1242f", "stopped": "url(#stopped)"}[kind]
        self.parts.append(f'  <rect x="{x - BAR / 2:g}" y="{self.y}" width="{BAR}" height="{end - self.y:g}" '
                          f'fill="{fill}"/>')

    def mark(self, x, meaning):
        y = self.y
        if meaning == "writes":
            self.parts.append(f'  <circle cx="{x}" cy="{y}" r="6" fill="#0969da" stroke="#ffffff"/>')
        elif meaning == "refused":
            for color, width in (("#ffffff", 6), ("#b3261e", 3)):  # it may be on a red bar
                self.parts.append(f'  <path d="M{x - 5:g} {y - 5} l10 10 m0 -10 l-10 10" stroke="{color}" '
                                  f'stroke-width="{width}"/>')
        else:
            self.parts.append(f'  <circle cx="{x}" cy="{y}" r="3" fill="#57606a"/>')


def draw_telling(drawing, telling):
    events = telling["events"]
    lanes = list(dict.fromkeys(event["who"] for event in events if event["meaning"]))
    lane = max([LANE, *(LETTER * len(who) + 10 for who in lanes)])
    places = {who: TIME + lane // 2 + lane * index for index, who in enumerate(lanes)}
    words_at = TIME + 14 + lane * len(lanes)
    drawing.lines(telling["title"], "telling")
    drawing.y += 2
    for who, x in places.items():
        drawing.text(x, escape(who), "name", "middle")
    drawing.y += ROW
    holding, stopped = set(), set()
    for number, event in enumerate(events):
        who, meaning = event["who"], event["meaning"]
        {"holds": holding.add, "lets": holding.discard}.get(meaning, lambda _: None)(who)
        {"stops": stopped.add, "goes on": stopped.discard}.get(meaning, lambda _: None)(who)
        end = drawing.y + (ROW if number + 1 < len(events) else ROW / 2)
        for one in sorted(holding):
            drawing.bar(places[one], end, "two" if len(holding) > 1 else "one")
            if one in stopped:
                drawing.bar(places[one], end, "stopped")
        if who in places:
            drawing.mark(places[who], meaning)
        drawing.text(TIME - 14, f"{event['s']:.2f} s", "time", "end")
        shown = textwrap.shorten(event["words"], COLUMNS - lane * len(lanes) // LETTER - len(who), placeholder=" …")
        kind = "bad" if meaning == "refused" else ""
        drawing.text(words_at, f'<tspan class="who">{escape(who)}</tspan> {escape(shown)}', kind)
        drawing.y += ROW
    drawing.y += 2
    drawing.lines("⇒ " + telling["verdict"], "")
    drawing.y += 14


def picture(story):
    """The text of an SVG file."""
    drawing = Drawing()
    drawing.y = 28
    drawing.text(20, escape(story["title"]), "title")
    drawing.y += 34
    for number, telling in enumerate(story["tellings"]):
        if number:
            drawing.parts.append(f'  <path class="line" d="M20 {drawing.y - 14} H{WIDTH - 20}"/>')
        drawing.y += 4
        draw_telling(drawing, telling)
    height = drawing.y
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title"',
        '     font-family="system-ui, sans-serif" font-size="14">',
        "  <!-- SPDX-License-Identifier: MIT -->",
        f'  <title id="title">{escape(story["title"])}</title>',
        STYLE,
        f'  <rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *drawing.parts,
        "</svg>", ""])
