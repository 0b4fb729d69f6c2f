"""Another name of the module workbench."""

import sys

import workbench

sys.modules[__name__] = workbench
