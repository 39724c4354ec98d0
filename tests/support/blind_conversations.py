"""More conversations in free words, of other domains than those before.

Half of them have pairs of similar but different statements, which must both survive. Rules may be tuned on
`TUNED`. Of `BLIND`, only the totals may be looked at.
"""

from collections.abc import Sequence

from tests.support.free_conversations import FreeConversation as Talk

HOTELS = (
    Talk(
        "check-in",
        (
            "We reserved a double room at the Alpenrose from 3 March to 7 March.",
            "The rate is 145 euros per night and includes breakfast.",
            "My wife has to work that week, so we come from 10 March to 14 March.",
            "The front desk gave us a better deal: 128 euros per night.",
        ),
        ("10 March to 14 March", "128 euros"),
        ("3 March", "145 euros"),
    ),
    Talk(
        "two-houses",
        (
            "In Bergen we stay at the Magic Hotel, confirmation BRG-4471.",
            "In Oslo we stay at the Citybox, confirmation OSL-9023.",
            "Late checkout in Bergen costs 30 euros.",
            "Late checkout in Oslo costs 45 euros.",
        ),
        ("BRG-4471", "OSL-9023", "30 euros", "45 euros"),
    ),
    Talk(
        "parking",
        (
            "The garage charges 18 euros a day.",
            "Our license plate is M-KL 4410.",
            "The garage charges 22 euros a day.",
            "We are coming with Jana's car, plate B-JR 207.",
        ),
        ("22 euros", "B-JR 207"),
        ("18 euros", "4410"),
    ),
    Talk(
        "rooms-of-guests",
        (
            "Room 214 is for my parents.",
            "Room 216 is for the Keller family.",
            "Breakfast on weekdays starts at 6:30.",
            "Breakfast on Sundays starts at 7:30.",
        ),
        ("Room 214", "Room 216", "6:30", "7:30"),
    ),
)
SERVERS = (
    Talk(
        "replicas",
        (
            "The search service runs with 3 replicas.",
            "It listens on port 9200.",
            "Load tests were disappointing, run the search service with 5 replicas.",
            "Port 9200 is taken by another team, use 9310.",
        ),
        ("5 replicas", "9310"),
        ("3 replicas", "listens on port 9200"),
    ),
    Talk(
        "replica-ports",
        (
            "The port of replica 1 is 7001.",
            "The port of replica 2 is 7002.",
            "Step 0 of the rollout drains the queue.",
            "Step 1 of the rollout stops the workers.",
        ),
        ("7001", "7002", "drains the queue", "stops the workers"),
    ),
    Talk(
        "timeouts",
        (
            "The timeout of the payment client is 30 seconds.",
            "Retries are limited to 4.",
            "The timeout of the payment client is 45 seconds.",
            "Ops asked for fewer attempts: retries are limited to 2.",
        ),
        ("45 seconds", "limited to 2"),
        ("30 seconds", "limited to 4"),
    ),
    Talk(
        "hosts",
        (
            "The primary database lives on db-ams-01 and has 64 GB of memory.",
            "The standby database lives on db-fra-02 and has 32 GB of memory.",
            "Backups go to s3://cold-store/nightly.",
            "Traces go to s3://cold-store/traces.",
        ),
        ("db-ams-01", "db-fra-02", "64 GB", "32 GB", "cold-store/nightly", "cold-store/traces"),
    ),
)
RECIPES = (
    Talk(
        "bread",
        (
            "The dough gets 500 g of flour and 320 g of water.",
            "Bake it at 240 degrees for 45 minutes.",
            "It came out too wet, so only 300 g of water.",
            "And bake it for 50 minutes.",
        ),
        ("300 g of water", "50 minutes"),
        ("45 minutes",),
    ),
    Talk(
        "two-cakes",
        (
            "The carrot cake bakes for 55 minutes.",
            "The cheesecake bakes for 70 minutes.",
            "Use 200 g of sugar for the carrot cake.",
            "Use 150 g of sugar for the cheesecake.",
        ),
        ("55 minutes", "70 minutes", "200 g", "150 g"),
    ),
    Talk(
        "guests",
        (
            "There will be 8 of us for dinner on Saturday.",
            "Dinner is at 19:00.",
            "The Meyers are bringing their kids, that makes 11.",
            "Make it 18:30.",
        ),
        ("11", "18:30"),
        ("8 of us", "19:00"),
    ),
    Talk(
        "allergies",
        (
            "Lena can't eat walnuts.",
            "Paul can't eat shellfish.",
            "The starter is pumpkin soup.",
            "The dessert is lemon tart.",
        ),
        ("walnuts", "shellfish", "pumpkin soup", "lemon tart"),
    ),
)
LAB = (
    Talk(
        "freezer",
        (
            "Sample S-118 is stored in freezer B.",
            "The centrifuge runs at 4,000 rpm.",
            "Freezer B broke down, S-118 went to freezer D.",
            "Dr. Okafor wants the centrifuge at 3,500 rpm.",
        ),
        ("freezer D", "3,500 rpm"),
        ("stored in freezer B", "4,000 rpm"),
    ),
    Talk(
        "samples",
        (
            "Sample S-118 has a pH of 6.8.",
            "Sample S-119 has a pH of 7.2.",
            "The blood samples are due on 4 May.",
            "The soil samples are due on 9 May.",
        ),
        ("6.8", "7.2", "4 May", "9 May"),
    ),
    Talk(
        "protocol",
        (
            "Incubate the plates for 24 hours at 37 degrees.",
            "Hanna Lindqvist signs the protocol.",
            "After the pilot we incubate the plates for 36 hours.",
            "Hanna is on leave until June; Mateo Ruiz signs the protocol.",
        ),
        ("36 hours", "Mateo Ruiz"),
        ("24 hours", "Lindqvist signs"),
    ),
    Talk(
        "reagents",
        (
            "Order 12 bottles of ethanol.",
            "Order 5 bottles of acetone.",
            "The ethanol comes from Merck.",
            "The acetone comes from Roth.",
        ),
        ("12 bottles", "5 bottles", "Merck", "Roth"),
    ),
)
GARDEN = (
    Talk(
        "beds",
        (
            "Bed 1 gets tomatoes, spaced 60 cm apart.",
            "We sow the carrots on 20 March.",
            "It is still freezing at night, so the carrots are sown on 5 April.",
            "The seed packet says 50 cm apart for the tomatoes.",
        ),
        ("5 April", "50 cm"),
        ("20 March", "60 cm"),
    ),
    Talk(
        "beds-side-by-side",
        (
            "Bed 3 is for onions.",
            "Bed 4 is for leeks.",
            "The apple tree needs 20 liters a week.",
            "The pear tree needs 15 liters a week.",
        ),
        ("onions", "leeks", "20 liters", "15 liters"),
    ),
    Talk(
        "irrigation",
        (
            "The drip line runs for 25 minutes every evening.",
            "I ordered the fence from Holzmann.",
            "With this heat I let the drip line run for 40 minutes.",
            "Holzmann has nothing before summer, the fence is ordered from Zaunwelt.",
        ),
        ("40 minutes", "Zaunwelt"),
        ("25 minutes", "from Holzmann."),
    ),
    Talk(
        "compost",
        (
            "The north compost heap was turned on 2 May.",
            "The south compost heap was turned on 16 May.",
            "Roses get 40 g of fertilizer.",
            "Hydrangeas get 25 g of fertilizer.",
        ),
        ("2 May", "16 May", "40 g", "25 g"),
    ),
)
ADDRESSES = (
    Talk(
        "moving",
        (
            "My address is Lindenstraße 14, 50674 Köln.",
            "Call me on 0221 778812.",
            "Since August I live at Hafenweg 3, 48155 Münster.",
            "My number there is 0251 330947.",
        ),
        ("Hafenweg 3", "0251 330947"),
        ("Lindenstraße 14", "0221 778812"),
    ),
    Talk(
        "billing-and-shipping",
        (
            "The billing address is 12 Queen Street, Leeds.",
            "The shipping address is 88 Dock Road, Hull.",
            "Emma's email is emma@northfold.org.",
            "Noah's email is noah@northfold.org.",
        ),
        ("12 Queen Street", "88 Dock Road", "emma@northfold.org", "noah@northfold.org"),
    ),
    Talk(
        "delivery",
        (
            "Parcels go to my neighbour, Mrs. Adeyemi.",
            "The courier comes on Monday.",
            "Mrs. Adeyemi is away, parcels go to the bakery, ask for Giorgio Conti.",
            "Sorry, Tuesday.",
        ),
        ("Giorgio Conti", "Tuesday"),
        ("neighbour, Mrs. Adeyemi", "Monday"),
    ),
    Talk(
        "branches",
        (
            "Our Leeds branch opens at 9:00.",
            "Our York branch opens at 10:00.",
            "The key of the front door is with Sam.",
            "The key of the back door is with Olu.",
        ),
        ("9:00", "10:00", "with Sam", "with Olu"),
    ),
)
TODO = (
    Talk(
        "errands",
        (
            "Todo: pick up the suit from the cleaner by Thursday.",
            "Todo: book the babysitter for the 21st.",
            "My brother picks up the suit, you can take that off the list.",
            "The party moved, we need the babysitter on the 28th.",
        ),
        ("28th",),
        ("by Thursday", "21st"),
    ),
    Talk(
        "calls",
        (
            "Call the plumber about the sink.",
            "Call the electrician about the doorbell.",
            "The tax form is due on 31 July.",
            "The insurance form is due on 15 August.",
        ),
        ("plumber", "electrician", "31 July", "15 August"),
    ),
    Talk(
        "presentation",
        (
            "The slides have to be finished by 12:00 on Wednesday.",
            "Nadia proofreads them.",
            "The boss wants to see the slides earlier, finish them by 10:00 on Wednesday.",
            "Nadia has too much on her plate, Felix proofreads them.",
        ),
        ("10:00", "Felix"),
        ("12:00", "Nadia proofreads"),
    ),
    Talk(
        "renovation",
        (
            "Paint the kitchen in RAL 9010.",
            "Paint the hallway in RAL 7035.",
            "Ticket 481 is assigned to Mira.",
            "Ticket 482 is assigned to Theo.",
        ),
        ("9010", "7035", "Mira", "Theo"),
    ),
)
SPORT = (
    Talk(
        "training",
        (
            "Training is on Tuesday at 18:00 in the Westhalle.",
            "The membership fee is 90 euros a year.",
            "The hall is being renovated: training is on Thursday at 19:30 in the Schulhalle.",
            "At the general meeting the members agreed on a fee of 105 euros a year.",
        ),
        ("19:30", "105 euros"),
        ("18:00", "90 euros"),
    ),
    Talk(
        "fixtures",
        (
            "The U12 play Hamburg on 9 May.",
            "The U14 play Bremen on 9 May.",
            "The home match against Kiel starts at 15:00.",
            "The away match against Kiel starts at 16:30.",
        ),
        ("Hamburg", "Bremen", "15:00", "16:30"),
    ),
    Talk(
        "coach",
        (
            "Our coach is Sabine Thoma.",
            "We ordered 22 jerseys.",
            "Sabine resigned yesterday and Dario Vuković is our coach.",
            "Two more players joined, so we ordered 24 jerseys in the end.",
        ),
        ("Dario Vuković", "24 jerseys"),
        ("coach is Sabine", "22 jerseys"),
    ),
    Talk(
        "records",
        (
            "Amira ran the 400 m in 58.2 seconds.",
            "Lotte ran the 400 m in 60.4 seconds.",
            "The girls train with Jo.",
            "The boys train with Max.",
        ),
        ("58.2", "60.4", "with Jo", "with Max"),
    ),
)
TUNED: Sequence[Sequence[Talk]] = (HOTELS, SERVERS, RECIPES, LAB)
BLIND: Sequence[Sequence[Talk]] = (GARDEN, ADDRESSES, TODO, SPORT)
