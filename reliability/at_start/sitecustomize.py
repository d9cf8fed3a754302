"""On the path of a fresh process that does harm to itself: Python reads this before the command begins."""

import json
import os
import sys

_order = os.environ.pop("GLASSFORMER_FAULT_ORDER", None)
if _order is not None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from reliability.orders import prepare

    sys.path.pop(0)
    prepare(json.loads(_order))
