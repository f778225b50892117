"""`report.html`: a run folder as one page that opens in any browser, without a network.

`source` reads the folder, `view` folds it into plain values, `page` puts them into one file. What
draws them is in `assets/`.
"""
