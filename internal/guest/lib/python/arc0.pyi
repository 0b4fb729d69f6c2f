from workbench import *
from workbench import ai as ai, aio as aio, tools as tools, web as web
