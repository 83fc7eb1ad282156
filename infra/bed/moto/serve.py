"""moto's DynamoDB server with one thread.

With several it checks a condition and writes without holding a lock in between: two of many racing writers win.
"""

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

run_simple(sys.argv[1], int(sys.argv[2]), DomainDispatcherApplication(create_backend_app), threaded=False)
