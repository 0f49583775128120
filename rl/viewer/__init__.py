"""The viewer of runs: ``python -m rl.view``.

``runs`` finds runs and reads their small files, ``episodes`` lists and reads episodes, ``findings``
looks for what is wrong, ``api`` answers the page's questions, ``server`` serves them, and ``page``
holds the web page.
"""
