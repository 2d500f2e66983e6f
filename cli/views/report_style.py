"""The style of a run's report: the colours of the light and the dark theme, one column where
narrow.

Rule: pictures are drawn in these variables (`cli.pictures.report.INKS`), and a test checks that
each is here for both themes.
"""

STYLE = """\
:root {
  color-scheme: light dark;
  --page: #f4f5f6; --card: #ffffff; --line: #dfe3e6;
  --ink: #1b2026; --muted: #5d676f; --rule: #e3e6e8;
  --good: #2f7d4f; --bad: #c0392b; --warn: #8f5b00;
  --zone-0: #2f7d50; --zone-1: #2b6cb0; --zone-2: #c27c03;
  --zone-3: #8250a8; --zone-4: #0f8a8a; --zone-5: #8a8f94;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --card: #1d2328; --line: #323a41;
    --ink: #e6eaed; --muted: #9aa5ad; --rule: #343c43;
    --good: #5fc48a; --bad: #ff7a6b; --warn: #e8ab45;
    --zone-0: #5fc48b; --zone-1: #6fb0f2; --zone-2: #e8ab46;
    --zone-3: #c19ae6; --zone-4: #4cc6c6; --zone-5: #a9b0b6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 20px 16px 40px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0; }
p { margin: 4px 0; overflow-wrap: anywhere; }
.muted, small, summary { color: var(--muted); font-size: 0.875rem; }
.tag {
  display: inline-block; margin-top: 6px; padding: 1px 8px;
  border: 1px solid currentColor; border-radius: 6px; font-weight: 600;
}
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.tiles div, .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.card { padding: 14px; margin: 0; min-width: 0; }
main > .card { margin-top: 14px; }
.missing { border-color: var(--warn); }
.first { display: flex; flex-wrap: wrap; gap: 12px 24px; align-items: center; }
.first > div { flex: 1 1 240px; }
.first > figure { flex: 3 1 600px; margin: 0; min-width: 0; }
.large {
  font-size: 3.2rem; line-height: 1.1; font-weight: 650; font-variant-numeric: tabular-nums;
}
.tiles, .cards { display: flex; flex-wrap: wrap; gap: 14px; margin: 14px 0; }
.tiles { gap: 10px; }
.tiles div { flex: 1 1 150px; padding: 10px 12px; }
.cards > * { flex: 1 1 340px; }
.cards:empty { display: none; }
dt { color: var(--muted); font-size: 0.875rem; }
dd { margin: 0; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
dd small { display: block; font-weight: 400; line-height: 1.3; }
.picture { container-type: inline-size; }
.picture svg { display: block; width: 100%; height: auto; margin: 8px auto 0; }
.picture .narrow { max-width: 480px; }
.picture .wide { display: none; }
@container (min-width: 580px) {
  .picture .narrow { display: none; }
  .picture .wide { display: block; }
}
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { color: var(--muted); font-weight: 400; font-size: 0.875rem; vertical-align: bottom; }
th, td { padding: 5px 8px; text-align: right; }
td { border-top: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
th:last-child, td:last-child { padding-right: 0; }
.lost th:nth-child(4), .lost td:nth-child(4), .lost th:nth-child(7), .lost td:nth-child(7),
.all td:nth-child(3), .uses th:nth-child(5) { text-align: left; white-space: normal; }
.lost td:nth-child(7) { font-size: 0.875rem; overflow-wrap: anywhere; }
.all td:nth-child(2) { font-weight: 600; }
.all td:nth-child(3) { width: 55%; color: var(--muted); font-size: 0.875rem; }
.sum td { font-weight: 600; border-top: 2px solid var(--muted); }
.beside td { color: var(--muted); }
.bar { position: relative; width: 44vw; max-width: 560px; height: 1.45em; }
.bar i {
  position: absolute; top: 15%; height: 70%; min-width: 1px; border-radius: 2px;
  background: var(--zone-2);
}
.bar .useful { background: var(--good); }
.bar .back { background: var(--zone-1); }
.bar .all { background: var(--ink); }
details { margin-top: 8px; }
summary { cursor: pointer; }
ol, ul { margin: 8px 0 0; padding-left: 22px; }
li { margin: 4px 0; overflow-wrap: anywhere; font-size: 0.92rem; }
@media (max-width: 600px) {
  dd { font-size: 1.2rem; }
  main { padding: 14px 10px 30px; }
  .card { padding: 10px; }
  th, td { padding: 5px 4px; font-size: 0.875rem; }
  .uses th:nth-child(5), .uses td:nth-child(5), .bars { display: none; }
  .lost tr {
    display: grid; grid-template-columns: 3em 3em 3.5em 1fr 4.5em 4em;
    border-top: 1px solid var(--line);
  }
  .lost tr:first-child { border-top: none; }
  .lost td { border-top: none; white-space: normal; }
  .lost th:nth-child(7) { display: none; }
  .lost td:nth-child(7) { grid-column: 1 / -1; padding: 0 0 6px; color: var(--muted); }
  .lost td:nth-child(7):empty { display: none; }
  .all td:nth-child(2) { white-space: normal; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
