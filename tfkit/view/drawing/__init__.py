"""The model graph as a drawing: SVG, an HTML page, and PNG through matplotlib. Nothing here imports torch.

boxes       the content of each node, from the data of `tfkit show --json`
layout      columns, rows and the routes of edges
svg         the drawing as SVG
figure      the same shapes as PNG
page        the pages of `tfkit show --html` and `tfkit diff --html`
marks       what differs between two models, by box
"""
