"""Every bound, with its unit in the name and its reason beside it.

A queue, loop, retry or cache without a name in this folder is a defect. The modules are its
chapters: what uses a bound says `limits.NAME`.
"""

from __future__ import annotations

from millrace.limits.access import *
from millrace.limits.aws import *
from millrace.limits.cache import *
from millrace.limits.dead_letter import *
from millrace.limits.disk import *
from millrace.limits.http import *
from millrace.limits.job import *
from millrace.limits.lake import *
from millrace.limits.memory import *
from millrace.limits.pipeline import *
from millrace.limits.request import *
from millrace.limits.sink import *
from millrace.limits.sns import *
from millrace.limits.spark import *
from millrace.limits.topic import *
from millrace.limits.turn import *
from millrace.limits.waiting import *
from millrace.limits.wire import *
