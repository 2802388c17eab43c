"""All limits, timeouts and cache sizes, each with its unit in the name and its reason in the text.

A queue, loop, retry or cache without a limit from this package is a defect. The modules are
chapters; code refers to `limits.NAME`.
"""

from __future__ import annotations

from millrace.limits.access import *
from millrace.limits.aws import *
from millrace.limits.backend import *
from millrace.limits.delivery import *
from millrace.limits.disk import *
from millrace.limits.http import *
from millrace.limits.memory import *
from millrace.limits.request import *
from millrace.limits.rpc import *
from millrace.limits.spark import *
