"""Nearest-rank percentiles as numpy has them. usage: python make_percentiles.py > percentiles.json"""
import json

import numpy

random = numpy.random.default_rng(0)
cases = []
for size in (1, 2, 3, 7, 20, 100, 255, 1000):
    values = [round(float(value), 6) for value in random.lognormal(0, 1, size)]
    percents = [0.1, 1, 5, 25, 50, 75, 90, 95, 99, 99.9, 100]
    cases.append({"values": values, "percentiles": {f"{p:g}": float(numpy.percentile(values, p, method="inverted_cdf")) for p in percents}})
print("[" + ",\n".join(map(json.dumps, cases)) + "]")
