"""Start-up hook of a fresh child: Python runs it before the command, to prepare the faults to inject."""

import json
import os
import sys

_order = os.environ.pop("GLASSFORMER_FAULT_ORDER", None)
if _order is not None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from reliability.injections import prepare

    sys.path.pop(0)
    prepare(json.loads(_order))
